// SPDX-License-Identifier: Apache-2.0

// Cri is a container runtime without containers, which the kubelet uses through CRI. A container usually has no process, and
// runs until the kubelet stops it. With the command "exit CODE", the container ends at once. If its command is a path, this
// program runs on the node, and the container ends with the program. The first line of the log of a container is JSON with
// its environment, mounts and devices. The output of the program follows. Cri resolves CDI devices with the library that
// containerd and CRI-O use.
//
// While its sandbox exists, a pod has a directory below --cgroup instead of a cgroup.
//
//	cri --listen SOCKET --cdi DIR --cgroup DIR
package main

import (
	"flag"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	listen := flag.String("listen", "/run/containerd/containerd.sock", "`SOCKET` for the kubelet")
	specs := flag.String("cdi", "/run/cdi", "`DIR` of the CDI specs")
	cgroup := flag.String("cgroup", "/run/cgroup/kubepods", "`DIR` of the pods' directories")
	flag.Parse()
	if err := serve(*listen, *specs, *cgroup); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

// serve serves until the process is killed.
func serve(listen, specs, cgroup string) error {
	if err := cdi.Configure(cdi.WithSpecDirs(specs)); err != nil {
		return err
	}
	l, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	r := newRuntime(cgroup)
	s := grpc.NewServer()
	api.RegisterRuntimeServiceServer(s, r)
	api.RegisterImageServiceServer(s, images{})
	return s.Serve(l)
}
