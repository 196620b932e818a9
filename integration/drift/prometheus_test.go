// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const prometheusDir = "../../packaging/prometheus/"

// metricNames returns the names of all metrics. A test of daemon/control checks that list.
func metricNames(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../daemon/control/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// unknownMetrics returns the names in a text that look like our metrics but do not exist.
func unknownMetrics(text string, names []string) []string {
	var unknown []string
	for _, name := range regexp.MustCompile(`metalplug_[a-z_]+`).FindAllString(text, -1) {
		base := name
		for _, part := range []string{"_bucket", "_sum", "_count"} { // suffixes of a histogram
			base = strings.TrimSuffix(base, part)
		}
		if !slices.Contains(names, name) && !slices.Contains(names, base) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// queries returns the expressions of the dashboard by the title of their panel.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(prometheusDir + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			title := fmt.Sprintf("%d %s", p.ID, p.Title)
			all[title] = append(all[title], target.Expr)
		}
	}
	return all
}

// TestDashboardAndAlertsKnowTheMetrics checks that both use only existing metrics, and that the dashboard shows every
// metric.
func TestDashboardAndAlertsKnowTheMetrics(t *testing.T) {
	names := metricNames(t)
	shown := ""
	for title, expressions := range queries(t) {
		for _, expression := range expressions {
			shown += expression + "\n"
			if unknown := unknownMetrics(expression, names); len(unknown) > 0 {
				t.Errorf("dashboard, panel %s: there is no %v", title, unknown)
			}
		}
	}
	for _, name := range names {
		if !strings.Contains(shown, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	for _, file := range []string{"alerts.yml", "alerts_test.yml"} {
		text, err := os.ReadFile(prometheusDir + file)
		if err != nil {
			t.Fatal(err)
		}
		if unknown := unknownMetrics(string(text), names); len(unknown) > 0 {
			t.Errorf("%s: there is no %v", file, unknown)
		}
	}
}

// TestScrapeMeetsTheSocket checks that the scrape job uses the address of the metrics socket.
func TestScrapeMeetsTheSocket(t *testing.T) {
	unit, err := os.ReadFile("../../systemd/metalplugd-metrics.socket")
	if err != nil {
		t.Fatal(err)
	}
	listen := regexp.MustCompile(`(?m)^ListenStream=.*:(\d+)$`).FindSubmatch(unit)
	job, err := os.ReadFile(prometheusDir + "scrape.yml")
	if err != nil {
		t.Fatal(err)
	}
	if listen == nil || !strings.Contains(string(job), `"localhost:`+string(listen[1])+`"`) {
		t.Errorf("the socket listens on %s, the job has\n%s", listen, job)
	}
}

// TestPromtool checks the job, the alerts with their test cases, and each expression of the dashboard with Prometheus'
// own program. In these expressions, a duration replaces Grafana's variable.
func TestPromtool(t *testing.T) {
	promtool := program(t, "promtool", "prometheus")
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for title, expressions := range queries(t) {
		for _, expression := range expressions {
			expression = strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(expression)
			quoted, err := json.Marshal(expression)
			if err != nil {
				t.Fatal(err)
			}
			rules += fmt.Sprintf("  - {record: panel, labels: {title: %q}, expr: %s}\n", title, quoted)
		}
	}
	dashboard := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(dashboard, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "config", "--syntax-only", prometheusDir + "scrape.yml"},
		{"check", "rules", prometheusDir + "alerts.yml"},
		{"test", "rules", prometheusDir + "alerts_test.yml"},
		{"check", "rules", "--lint=none", dashboard},
	} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestMonitoringPage checks that docs/monitoring.md lists exactly the existing metrics and alerts.
func TestMonitoringPage(t *testing.T) {
	page, metrics := text(t, "docs/monitoring.md"), metricNames(t)
	if unknown := unknownMetrics(strings.ReplaceAll(page, "metalplugd_metrics_tcp", ""), metrics); len(unknown) > 0 {
		t.Errorf("docs/monitoring.md has %q, which are not metrics", unknown)
	}
	for _, name := range metrics {
		if !strings.Contains(page, "| `"+name+"` |") {
			t.Errorf("docs/monitoring.md has no row for %s", name)
		}
	}
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(text(t, "packaging/prometheus/alerts.yml"), -1) {
		if !strings.Contains(page, "| "+alert[1]+" |") {
			t.Errorf("docs/monitoring.md has no row for the alert %s", alert[1])
		}
	}
}
