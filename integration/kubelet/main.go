// SPDX-License-Identifier: Apache-2.0

// Command kubelet is the kubelet of Kubernetes, for the test machines.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }
