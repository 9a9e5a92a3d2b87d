# kube-scheduler-config.yaml for a kube-scheduler that asks the Service of manifests/remote. Without the cluster's DNS, as
# on the host's network, write the Service's clusterIP into urlPrefix; serverName stays.
s|^- # The scheduler appends "/" and the verb\. .*|- # The scheduler appends "/" and the verb.|
s|^  urlPrefix: .*|  urlPrefix: https://gpu-extender.gpu-extender-system.svc:8443/v1|
/^  # Plain HTTP on loopback\./,/^  enableHTTPS: false$/c\
  # Both sides show a certificate. Without a CA here kube-scheduler would check none. It reads the CA once, when it\
  # starts, and the other two files for each new connection.\
  enableHTTPS: true\
  tlsConfig:\
    serverName: gpu-extender.gpu-extender-system.svc\
    caFile: /etc/kubernetes/kube-scheduler/ca.crt\
    certFile: /etc/kubernetes/kube-scheduler/tls.crt\
    keyFile: /etc/kubernetes/kube-scheduler/tls.key
