// SPDX-License-Identifier: Apache-2.0

//go:build k8s131

package host

// Release is the Kubernetes release that this package was built from. Its
// kubelet Crashes if an ID leaves the list during its Allocate, and KeepsLast:
// what the last pod has counts as taken until another is admitted.
const (
	Release   = "v1.31.14"
	Crashes   = false
	KeepsLast = true
)
