#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: certificate.sh NODE [KUBECONFIG [OUTPUT]]
#
# Requests a client certificate of the node for metalplug-dra with the kubelet's kubeconfig, and writes a kubeconfig with it.
# The key is new. The certificate has the rights of the node, usually for a year. Run this again and restart metalplug-dra
# before it ends. It needs openssl, and kubectl 1.31 or later.
set -eu
umask 077
node=${1:?usage: certificate.sh NODE [KUBECONFIG [OUTPUT]]} kubelet=${2:-/etc/kubernetes/kubelet.conf} out=${3:-/etc/metalplug-dra/kubeconfig}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
k() { kubectl --kubeconfig "$kubelet" "$@"; }

openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$tmp/key" 2>/dev/null
openssl req -new -key "$tmp/key" -subj "/O=system:nodes/CN=system:node:$node" -out "$tmp/request"
csr=$(k create -o name -f - <<EOF
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {generateName: metalplug-dra-}
spec:
  signerName: kubernetes.io/kube-apiserver-client-kubelet
  usages: [digital signature, client auth]
  request: $(base64 -w0 <"$tmp/request")
EOF
)
# Clusters made by kubeadm approve this automatically. On others, an administrator runs kubectl certificate approve NAME.
echo "waiting for the approval of $csr" >&2
k wait --for=jsonpath='{.status.certificate}' --timeout=10m "$csr" >&2

cat >"$tmp/kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: metalplug-dra
contexts:
- {name: metalplug-dra, context: {cluster: metalplug-dra, user: metalplug-dra}}
clusters:
- name: metalplug-dra
  cluster:
    server: $(k config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
    certificate-authority-data: $(k config view --minify --raw --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}')
users:
- name: metalplug-dra
  user:
    client-certificate-data: $(k get "$csr" -o 'jsonpath={.status.certificate}')
    client-key-data: $(base64 -w0 <"$tmp/key")
EOF
mkdir -p "$(dirname "$out")"
mv "$tmp/kubeconfig" "$out"
