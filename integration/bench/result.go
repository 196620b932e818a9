// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// result is one line of the table.
type result struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Floor  *float64 `json:"floor"` // floor in the same unit, or null if there is none
	Ratio  *float64 `json:"ratio"` // ratio of the value to the floor
	P99    *float64 `json:"p99"`   // 99th percentile, if the value is a median, in the same unit, or null
	Runs   int      `json:"runs"`  // number of measurements
	Budget string   `json:"budget"`
	OK     bool     `json:"ok"`

	note string // additional information about the numbers
}

// withNote returns the result with a note below the table.
func (r result) withNote(format string, args ...any) result {
	r.note = fmt.Sprintf(format, args...)
	return r
}

// within returns a result whose budget is an amount.
func within(name, unit string, value, budget float64) result {
	return result{Name: name, Value: value, Unit: unit, Budget: fmt.Sprintf("%g %s", budget, unit), OK: value <= budget}
}

// above adds the floor to a result.
func (r result) above(floor float64) result {
	ratio := r.Value / floor
	r.Floor, r.Ratio = &floor, &ratio
	return r
}

// withPercentile adds the 99th percentile of samples, in milliseconds, to a result that is the median of these samples.
func (r result) withPercentile(s samples) result {
	return r.beside(s.percentile(99)).of(len(s))
}

// beside adds the 99th percentile, in the same unit, to a result that is a median.
func (r result) beside(p99 float64) result {
	r.P99 = &p99
	return r
}

// of adds the number of runs to a result.
func (r result) of(runs int) result {
	r.Runs = runs
	return r
}

// ratio returns a result whose budget is a multiple of its floor.
func ratio(name, unit string, value, floor, budget float64) result {
	r := result{Name: name, Value: value, Unit: unit, Budget: fmt.Sprintf("%g x", budget)}.above(floor)
	r.OK = *r.Ratio <= budget
	return r
}

func printTable(w io.Writer, results []result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tmeasured\tp99\tfloor\tratio\tbudget\truns\t")
	var notes []string
	for _, r := range results {
		floor, ratio, p99, verdict := "", "", "", "ok"
		if r.P99 != nil {
			p99 = amount(*r.P99, r.Unit)
		}
		if r.Floor != nil {
			floor, ratio = amount(*r.Floor, r.Unit), fmt.Sprintf("%.2f x", *r.Ratio)
		}
		if !r.OK {
			verdict = "missed"
		}
		if r.note != "" {
			notes = append(notes, r.note)
			verdict += fmt.Sprintf(" [%d]", len(notes))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Name, amount(r.Value, r.Unit), p99, floor, ratio, r.Budget, r.Runs, verdict)
	}
	t.Flush()
	for i, note := range notes {
		fmt.Fprintf(w, "[%d] %s\n", i+1, note)
	}
}

// amount formats a value with three digits, or with all digits before the decimal point.
func amount(value float64, unit string) string {
	digits := 2
	switch {
	case value == float64(int64(value)) || value >= 100:
		digits = 0
	case value >= 10:
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, value, unit)
}

func writeJSON(file string, results []result) error {
	if results == nil {
		results = []result{}
	}
	text, err := json.MarshalIndent(results, "", "\t")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// samples are measured durations.
type samples []time.Duration

// percentile returns the duration in milliseconds that p of 100 samples do not exceed.
func (s samples) percentile(p int) float64 { return percentile(s, p).Seconds() * 1000 }

// percentile returns the value that p of 100 values do not exceed.
func percentile[V cmp.Ordered](values []V, p int) V {
	sorted := slices.Sorted(slices.Values(values))
	n := (len(sorted)*p + 99) / 100
	return sorted[max(0, n-1)]
}

// milliseconds returns the results for some percentiles of samples and of their floor. A budget of 0 means that there
// is none.
func milliseconds(name string, ours, floor samples, budget map[int]float64) []result {
	var results []result
	for _, p := range []int{50, 99} {
		if budget[p] == 0 {
			continue
		}
		r := within(fmt.Sprintf("%s, p%d", name, p), "ms", ours.percentile(p), budget[p])
		results = append(results, r.above(floor.percentile(p)).of(len(ours)))
	}
	return results
}

// lastLines returns the end of a program's output, for an error.
func lastLines(text string) string {
	const most = 600
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return strings.TrimSpace(text)
}
