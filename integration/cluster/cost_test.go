// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	costTime  = flag.Duration("cost", 5*time.Second, "how long TestCost measures at a time")
	costNodes = flag.Int("cost-nodes", 2, "up to how many nodes TestCost measures, doubled from 1 on")
)

// costs has counters of the API server. The keys name what they count.
type costs map[string]float64

// TestCost prints the load that nodes cause on the API server, with the default intervals of the kubelet. A node is idle at
// first. Then one of its devices disappears and comes back. docs/performance.md has figures.
func TestCost(t *testing.T) {
	s := tell(t, fmt.Sprintf("requests to the API server of 1 to %d nodes", *costNodes))
	s.allowNodes(*costNodes)
	s.measure(func() {}) // skips the load that the start of the control plane causes
	none := s.measure(func() {})
	s.Logf("no node:\n%s", none.table(1))
	var nodes []*Node
	for n := 1; n <= *costNodes; n *= 2 {
		for len(nodes) < n {
			o := NodeOptions{Name: s.label(fmt.Sprintf("-n%d", len(nodes))), Recording: widgets(2), Status: kubeletDefault}
			nodes = append(nodes, s.nodeOf(o, 2))
		}
		idle := s.measure(func() {})
		s.Logf("%d idle nodes, each:\n%s", n, idle.less(none).table(n))
		changed := s.measure(func() {
			for _, recording := range []string{widgets(1), widgets(2)} {
				for _, node := range nodes {
					s.must(node.Plug(recording))
				}
				for _, node := range nodes {
					s.allocatable(node, strings.Count(recording, "P: "))
				}
			}
		})
		delete(changed, "GET nodes") // this story itself sends these requests
		s.Logf("%d nodes with two changes, each:\n%s", n, changed.less(none).table(n))
		s.step("%d nodes were measured", n)
	}
}

// allowNodes raises the limit for the inotify instances of a user during the story, if it is too low for these nodes.
func (s *story) allowNodes(nodes int) {
	s.Helper()
	const file, ofNode, ofOthers = "/proc/sys/fs/inotify/max_user_instances", 14, 32
	text, err := os.ReadFile(file)
	s.must(err)
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	s.must(err)
	need := ofOthers + ofNode*nodes
	if now >= need {
		return
	}
	s.must(os.WriteFile(file, []byte(strconv.Itoa(need)), 0))
	s.Cleanup(func() { s.must(os.WriteFile(file, text, 0)) })
}

// measure calls do, and returns how much the counters grow within a minute.
func (s *story) measure(do func()) costs {
	s.Helper()
	before, began := s.counters(), time.Now()
	window, cancel := context.WithTimeout(s.Context(), *costTime)
	defer cancel()
	do()
	<-window.Done()
	minutes := time.Since(began).Minutes()
	grown := s.counters().less(before)
	for name := range grown {
		grown[name] /= minutes
	}
	return grown
}

// counted matches the counters of requests and of CPU time in the metrics of the API server.
var counted = regexp.MustCompile(`^(apiserver_request_total|process_cpu_seconds_total)(\{.*\})? (\S+)$`)

// label matches a label of a metric.
var label = regexp.MustCompile(`\b(verb|resource|subresource)="([^"]*)"`)

func (s *story) counters() costs {
	s.Helper()
	text, err := s.cluster.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(s.Context())
	s.must(err)
	c := make(costs)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		m := counted.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		s.must(err)
		name := "seconds of a processor"
		if m[2] != "" {
			labels := make(map[string]string)
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				labels[l[1]] = l[2]
			}
			name = strings.TrimRight(labels["verb"]+" "+labels["resource"]+"/"+labels["subresource"], "/")
		}
		c[name] += value
	}
	s.must(lines.Err())
	return c
}

// less returns c minus the costs in others.
func (c costs) less(others costs) costs {
	left := maps.Clone(c)
	for name, value := range others {
		left[name] -= value
	}
	return left
}

// table shows the costs of each of n nodes per minute, largest first. It omits values below one hundredth.
func (c costs) table(n int) string {
	names := slices.SortedFunc(maps.Keys(c), func(a, b string) int { return int(c[b]*1e3) - int(c[a]*1e3) })
	var b strings.Builder
	for _, name := range names {
		if each := c[name] / float64(n); each >= 0.01 {
			fmt.Fprintf(&b, "\t%8.2f  %s\n", each, name)
		}
	}
	return b.String()
}
