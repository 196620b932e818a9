// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// Env is the environment variable that makes a test binary a simulated kubelet. Its value has the options as JSON.
const Env = "METALPLUG_DM_OPTIONS"

// Requested reports whether this process was started as a simulated kubelet.
func Requested() bool { return os.Getenv(Env) != "" }

// Main runs the simulated kubelet that Env describes. It returns the exit status.
func Main() int {
	var o protocol.Options
	if err := json.Unmarshal([]byte(os.Getenv(Env)), &o); err != nil {
		fmt.Fprintf(os.Stderr, "read %s: %v\n", Env, err)
		return 2
	}
	if err := SetVerbosity(o.Verbosity); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := Serve(o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// SetVerbosity sets how much the device manager logs on stderr.
func SetVerbosity(v int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(v)); err != nil {
		return fmt.Errorf("set verbosity: %w", err)
	}
	return nil
}
