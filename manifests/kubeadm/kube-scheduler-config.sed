# kube-scheduler-config.yaml for the control plane's own kube-scheduler: its profile, its Lease, its kubeconfig.
s/^- schedulerName: gpu-scheduler .*/- schedulerName: default-scheduler/
/^  resourceName: gpu-scheduler$/d
/^  resourceNamespace: gpu-extender-system$/d
$a\
\
clientConnection:\
  kubeconfig: /etc/kubernetes/scheduler.conf
