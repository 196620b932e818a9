// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strconv"
)

// gates returns the flag for a feature gate that older releases disable by default. Before v1.36, the status of a pod has
// the health of devices only with this gate (KEP-4680).
func gates(release string) []string {
	if slices.Contains([]string{"v1.31", "v1.32", "v1.33", "v1.34", "v1.35"}, release) {
		return []string{"--feature-gates=ResourceHealthStatus=true"}
	}
	return nil
}

// serverFlags returns the flags of kube-apiserver. As with kubeadm, the authorization modes are Node and RBAC.
func (c *Cluster) serverFlags(etcd string, port int) []string {
	return append(slices.Concat(gates(c.options.Release), c.options.Server),
		"--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--endpoint-reconciler-type=none", // no client needs the service "kubernetes"
		"--tls-cert-file="+c.File("apiserver.crt"), "--tls-private-key-file="+c.File("apiserver.key"),
		"--client-ca-file="+c.File("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.File("sa.pub"), "--service-account-signing-key-file="+c.File("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP", // DNS does not know the names of the nodes
		"--kubelet-client-certificate="+c.File("kubelet-client.crt"), "--kubelet-client-key="+c.File("kubelet-client.key"),
	)
}

// componentFlags returns the flags that kube-scheduler and kube-controller-manager share.
func (c *Cluster) componentFlags(name string, port int) []string {
	config := c.File(name + ".kubeconfig")
	return []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--leader-elect=false", // there is only one instance of each program
	}
}
