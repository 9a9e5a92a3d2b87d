"""A model of the whole: the queue's real controllers and verbs among kube-scheduler, kubelets, tenants and failures, in
virtual time, with seeds and shrinking. `steps.Queue` is a part of the fuzzer's engine."""
