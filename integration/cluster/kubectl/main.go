// SPDX-License-Identifier: Apache-2.0

// Command kubectl is kubectl of the same release as the cluster. It is a separate program, because few stories need it, and
// because 190 packages are only used by it.
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error as kubectl does
	}
}
