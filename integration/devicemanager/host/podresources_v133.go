// SPDX-License-Identifier: Apache-2.0

//go:build k8s131 || k8s133

package host

import (
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	limiter "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
)

// newPodResources returns the kubelet's own server of that API, with its rate limit.
func newPodResources(providers podresources.PodResourcesProviders) *grpc.Server {
	server := grpc.NewServer(limiter.WithRateLimiter("podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens))
	api.RegisterPodResourcesListerServer(server, podresources.NewV1PodResourcesServer(providers))
	return server
}
