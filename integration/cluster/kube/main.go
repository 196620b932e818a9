// SPDX-License-Identifier: Apache-2.0

// Kube combines the programs of one release of Kubernetes and its etcd in one file. So they are linked only once and share
// the page cache. The first argument is the name of the program, and the other arguments are passed to it:
//
//	kube etcd|apiserver|scheduler|controllers|kubelet [flags]
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	var command *cobra.Command
	if len(os.Args) > 1 {
		command = program(os.Args[1])
	}
	if command == nil {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|apiserver|scheduler|controllers|kubelet [flags]")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(cli.Run(command))
}

// program returns the command of a program, or nil if there is no such program.
func program(name string) *cobra.Command {
	switch name {
	case "etcd":
		return etcdCommand()
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	case "controllers":
		return controllers.NewControllerManagerCommand()
	case "kubelet":
		return kubeletCommand()
	}
	return nil
}
