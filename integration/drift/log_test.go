// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// firstKey is the index of a log method's first key argument. Each key is followed by its value.
var firstKey = map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "Log": 3, "With": 0}

// fieldKeys are all keys that a log line of the daemon may have. In the journal they are in upper case, with the prefix
// METALPLUG_.
var fieldKeys = []string{
	"action", "class", "detail", "device", "duration", "endpoint", "err", "pod", "reason", "remedy", "resource", "serial", "stack",
	"syspath", "user",
}

// TestLogKeysAreListed checks the keys of log lines. Each key becomes a journal field, which people use in searches.
func TestLogKeysAreListed(t *testing.T) {
	used := make(map[string]bool)
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			for _, key := range logKeys(n) {
				used[key] = true
				if !slices.Contains(fieldKeys, key) {
					t.Errorf("%s: the log key %q is not among fieldKeys", s.name, key)
				}
			}
			return true
		})
	}
	for _, key := range fieldKeys {
		if !used[key] {
			t.Errorf("nothing is logged with the key %q: take it out of fieldKeys", key)
		}
	}
}

// TestErrorsHaveTheKeyErr checks that the value of the key err is an error. Other text has the key reason or detail.
func TestErrorsHaveTheKeyErr(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			if len(logKeys(n)) == 0 {
				return true
			}
			arguments := n.(*ast.CallExpr).Args
			for i, a := range arguments {
				if key, ok := a.(*ast.BasicLit); !ok || key.Value != `"err"` || i == len(arguments)-1 {
					continue
				}
				checked++
				if value := types.ExprString(arguments[i+1]); !errorValue.MatchString(value) {
					t.Errorf("%s: %s has the key err, but is not an error", s.name, value)
				}
			}
			return true
		})
	}
	if checked < 20 {
		t.Errorf("only %d errors were found", checked)
	}
}

// errorValue matches an expression that is an error, or a saved text of one.
var errorValue = regexp.MustCompile(`^(\*?err|\w+\.err|(errors\.New|fmt\.Errorf)\(.*|complaint)$`)

// logKeys returns the keys in a call of a log method, or none for other nodes.
func logKeys(n ast.Node) []string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !isLogger(method.X) {
		return nil
	}
	from, ok := firstKey[method.Sel.Name]
	if !ok {
		return nil
	}
	var keys []string
	for i := from; i < len(call.Args); i += 2 {
		literal, ok := call.Args[i].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			i-- // an attribute, which is a single argument
			continue
		}
		if key, err := strconv.Unquote(literal.Value); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// isLogger reports whether the name of an expression is that of a logger.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log")
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	}
	return false
}
