// SPDX-License-Identifier: Apache-2.0

// Kube has all programs of one release of Kubernetes and its etcd in one file. So they are linked only once and share
// the page cache. The first argument is the name of the program, and the others are its arguments:
//
//	kube etcd|apiserver|scheduler|controllers|kubelet|kubectl [flags]
//
// If its file name is kubectl, it runs kubectl.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	if name != "kubectl" && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
	}
	command := program(name)
	if command == nil {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|apiserver|scheduler|controllers|kubelet|kubectl [flags]")
		os.Exit(2)
	}
	if name == "kubectl" {
		os.Exit(kubectlExit(command))
	}
	os.Exit(cli.Run(command))
}

// kubectlExit runs kubectl, which prints its own errors.
func kubectlExit(command *cobra.Command) int {
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
	return 0
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
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}
