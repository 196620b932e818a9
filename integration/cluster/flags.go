// SPDX-License-Identifier: Apache-2.0

package cluster

import "strconv"

// serverFlags returns the flags of kube-apiserver. The authorization is that of kubeadm: node identities and RBAC.
func (c *Cluster) serverFlags(etcd string, port int) []string {
	return []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--endpoint-reconciler-type=none", // no client needs the service "kubernetes"
		"--tls-cert-file=" + c.File("apiserver.crt"), "--tls-private-key-file=" + c.File("apiserver.key"),
		"--client-ca-file=" + c.File("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.File("sa.pub"), "--service-account-signing-key-file=" + c.File("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP", // the names of the nodes are not in DNS
		"--kubelet-client-certificate=" + c.File("kubelet-client.crt"), "--kubelet-client-key=" + c.File("kubelet-client.key"),
	}
}

// componentFlags returns the flags that kube-scheduler and kube-controller-manager share.
func (c *Cluster) componentFlags(name string, port int) []string {
	config := c.File(name + ".kubeconfig")
	return []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--leader-elect=false", // each runs only once
	}
}
