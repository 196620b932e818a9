// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/lease"
)

// mutant is one change of the table.
type mutant struct {
	name   string
	change func(table []lease.Row) []lease.Row
}

// mutants returns the table without each state or effect of a row, with each other next state, and with each other
// condition.
func mutants() (all []mutant) {
	for i, r := range lease.Table {
		row := fmt.Sprintf("row %d, %s of %v if %q", i, r.Event, r.From, r.If)
		set := func(name string, change func(r *lease.Row)) {
			all = append(all, mutant{row + ": " + name, func(table []lease.Row) []lease.Row {
				changed := table[i]
				change(&changed)
				table[i] = changed
				return table
			}})
		}
		for _, state := range r.From {
			set(fmt.Sprintf("not in state %s", state), func(r *lease.Row) {
				r.From = slices.DeleteFunc(slices.Clone(r.From), func(s lease.State) bool { return s == state })
			})
		}
		for n, do := range r.Do {
			set(fmt.Sprintf("without %q", do), func(r *lease.Row) { r.Do = slices.Delete(slices.Clone(r.Do), n, n+1) })
		}
		for _, to := range append([]lease.State{""}, lease.States...) {
			if to != r.To && !(r.To == "" && len(r.From) == 1 && to == r.From[0]) {
				set(fmt.Sprintf("to %q", to), func(r *lease.Row) { r.To = to })
			}
		}
		for _, c := range conditions {
			if c != r.If {
				set(fmt.Sprintf("if %q", c), func(r *lease.Row) { r.If = c })
			}
		}
	}
	return all
}

var conditions = []lease.Condition{lease.Always, lease.IfDue, lease.IfHeld, lease.IfUsed, lease.IfFailed, lease.IfProven, lease.IfGiven}

var everyWorld = flag.Bool("every-world", false, "look for mutants in all worlds, which takes an hour of processor time, and not only where nothing goes wrong")

// minCaught is the number of mutants that calm worlds alone detect.
const minCaught = 341

// TestMutants changes one part of the table at a time. A promise must be broken for each mutant. A mutant that gives
// the same answers to all events that occur does not count.
func TestMutants(t *testing.T) {
	table := lease.Table
	defer func() { lease.Table = table }()
	answers := make(map[question]string)
	for _, rule := range rules {
		for q := range explore(rule, !*everyWorld).asked {
			answers[q], _ = q.answer()
		}
	}
	caught, same, missed := 0, 0, 0
	for _, m := range mutants() {
		lease.Table = m.change(slices.Clone(table))
		switch {
		case !differs(answers):
			same++
		case breaksPromise(true), *everyWorld && breaksPromise(false):
			caught++
		default:
			missed++
			t.Logf("not caught: %s", m.name)
		}
	}
	t.Logf("%d mutants caught, %d not; %d answer all that is asked as before", caught, missed, same)
	if caught < minCaught {
		t.Errorf("%d mutants are caught, at least %d were before", caught, minCaught)
	}
}

func differs(answers map[question]string) bool {
	for q, was := range answers {
		if now, ok := q.answer(); !ok || now != was {
			return true
		}
	}
	return false
}

// breaksPromise reports whether a promise is broken in the worlds of a rule. In calm worlds nothing fails.
func breaksPromise(calm bool) bool {
	return slices.ContainsFunc(rules, func(r lease.Rule) bool { return explore(r, calm).broken != "" })
}
