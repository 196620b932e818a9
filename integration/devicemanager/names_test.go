// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// Valid and invalid parts of a name, before and after its slash. The names in the test of daemon/config consist of some
// of them.
var (
	longDomain = strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 60)+".", 4), ".") // 243 bytes
	domains    = []string{
		"", "a", "nvidia.com", "gpu.intel.com", "3com.example", "localhost", "xn--x", "a-b.c", longDomain, longDomain + "d", longDomain + "dd",
		strings.Repeat("d", 63) + ".a", strings.Repeat("d", 64) + ".a", "hugepages-2mi", "kubernetes.io", "node.kubernetes.io", "mykubernetes.io",
		"kubernetes.io.example.com", "requests.example.com", "requests", "requests.", "myrequests.com", "limits.example.com", "Example.com",
		"example..com", ".com", "com.", "-a.com", "a-.com", "a_b.com", "exämple.com", "a b", "example.com\n", "example.com/kubernetes.io",
	}
	words = []string{
		"", "x", "X9", "A_b.c-9", "kubernetes.io", "kubernetes.io/x", "requests.x", "a/b", "/b", "-x", "x-", "x.", ".x", "_x", "x..y", "x:y",
		"x\n", "ä", "x\x00", "x y", strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("n", 4096),
	}
)

// names returns all combinations, and random ones made of pieces, without duplicates.
func names() []string {
	all := []string{"", "cpu", "memory", "gpu", "hugepages-2Mi", "pods", "attachable-volumes-x", "example.com"}
	for _, domain := range domains {
		for _, word := range words {
			all = append(all, domain+"/"+word)
		}
	}
	random := rand.New(rand.NewPCG(0, 0))
	pieces := append([]string{"/", "/", "/", ".", "-", "_", "requests.", "kubernetes.io/", "com", "A", "0"}, slices.Concat(domains, words)...)
	for range 3000 {
		var name strings.Builder
		for range 1 + random.IntN(5) {
			name.WriteString(pieces[random.IntN(len(pieces))])
		}
		all = append(all, name.String())
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return !utf8.ValidString(name) })
}

// configuration returns a configuration with a resource for each name, four lines each.
func configuration(t *testing.T, names []string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		quoted, err := json.Marshal(name) // TOML accepts JSON strings
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "[[resource]]\nname = %s\nclass = \"node\"\nmatch = { SUBSYSTEM = \"widget\" }\n", quoted)
	}
	return text.String()
}

// problem matches a line of metalplugd's errors about a configuration.
var problem = regexp.MustCompile(`^.*/metalplug\.toml:(\d+): resource\.name: (.*)$`)

// refusals returns metalplugd's error for each name that it rejects.
func refusals(t *testing.T, names []string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "metalplug.toml")
	if err := os.WriteFile(file, []byte(configuration(t, names)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program(t), "-check", "-config", file).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	refused := make(map[string]string)
	for said := range strings.Lines(string(out)) {
		found := problem.FindStringSubmatch(strings.TrimSuffix(said, "\n"))
		if found == nil {
			t.Fatalf("metalplugd says %q", said)
		}
		line, err := strconv.Atoi(found[1])
		if err != nil || line%4 != 2 || line/4 >= len(names) {
			t.Fatalf("metalplugd says %q", said)
		}
		if !strings.Contains(found[2], "have the same environment variable") { // valid, but not together
			refused[names[line/4]] = found[2]
		}
	}
	return refused
}

// bundles divides the names into configurations that do not exceed metalplugd's size limit.
func bundles(t *testing.T, names []string) (all [][]string) {
	t.Helper()
	var bundle []string
	for _, name := range names {
		if more := append(slices.Clone(bundle), name); len(more) > 200 || len(configuration(t, more)) > 60_000 {
			all, bundle = append(all, bundle), nil
		}
		bundle = append(bundle, name)
	}
	return append(all, bundle)
}

// metalplugd accepts a name in its configuration exactly if the kubelet accepts its registration.
func TestNamesAsTheKubelet(t *testing.T) {
	taken, refused := 0, 0
	for _, some := range bundles(t, names()) {
		reasons := refusals(t, some)
		for _, name := range some {
			reason, refuses := reasons[name]
			if valid := helper.IsExtendedResourceName(v1.ResourceName(name)); valid == refuses {
				t.Errorf("%.300q: for the kubelet it is valid: %v; metalplugd says %q", name, valid, reason)
			}
			if refuses {
				refused++
			} else {
				taken++
			}
		}
	}
	if t.Logf("%d names are taken, %d refused", taken, refused); taken < 100 || refused < 1000 {
		t.Error("the names are too much alike")
	}
}
