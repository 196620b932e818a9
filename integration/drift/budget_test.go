// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"strings"
	"testing"
)

// Limits for the product. The mean length of a file has no limit, because that would split files by length instead of
// content. Where the code is above its aim, the limit is slightly above the present number. Lower the limit when the code
// becomes smaller.
const (
	productLines   = 27_922 // lines of code, with an aim of 22,500
	inventoryLines = 2_471  // the aim is 1,800
	turnoverLines  = 983    // the aim is 600
	testsToProduct = 0.90   // lines of code of unit tests to one of the product, with an aim of 0.9
	whiteBox       = 0.32   // the same ratio for tests inside the package that they test, with an aim of 0.3
	commentsMin    = 15     // percentage of the product's non-blank lines
	commentsMax    = 22
	structFields   = 20
	structBooleans = 3
	typeMethods    = 30
	interfaces     = 4
	importChain    = 9 // length of the longest chain of imports in this module, with an aim of 6
)

// tally counts the lines of Go files.
type tally struct{ code, comments int }

func (c *tally) add(t *testing.T, name string) *ast.File {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			c.code++
		}
	}
	for _, group := range parsed.Comments {
		c.comments += files.Position(group.End()).Line - files.Position(group.Pos()).Line + 1
	}
	return parsed
}

// size is the size of a type.
type size struct {
	fields, booleans, methods int
	isInterface               bool
}

// measure adds the types of a file to those of its package.
func measure(sizes map[string]*size, folder string, file *ast.File) {
	of := func(name string) *size {
		name = folder + "." + name
		if sizes[name] == nil {
			sizes[name] = &size{}
		}
		return sizes[name]
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				of(receiver(n.Recv.List[0].Type)).methods++
			}
		case *ast.TypeSpec:
			_, of(n.Name.Name).isInterface = n.Type.(*ast.InterfaceType)
			if s, ok := n.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					count := max(len(field.Names), 1)
					of(n.Name.Name).fields += count
					if kind, ok := field.Type.(*ast.Ident); ok && kind.Name == "bool" {
						of(n.Name.Name).booleans += count
					}
				}
			}
		}
		return true
	})
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

func TestBudget(t *testing.T) {
	var product, tests, white, inventory, turnover tally
	sizes := make(map[string]*size)
	for _, name := range goFiles(t) {
		folder := strings.TrimPrefix(path.Dir(name), "../../")
		support := strings.HasPrefix(folder, "integration")
		switch {
		case strings.HasSuffix(name, "_test.go") && !support:
			if parsed := tests.add(t, name); !strings.HasSuffix(parsed.Name.Name, "_test") {
				white.add(t, name)
			}
		case !support:
			measure(sizes, folder, product.add(t, name))
			switch folder {
			case "daemon/inventory":
				inventory.add(t, name)
			case "daemon/turnover":
				turnover.add(t, name)
			}
		}
	}
	for _, limit := range []struct {
		name        string
		lines, most int
	}{
		{"the product", product.code, productLines},
		{"daemon/inventory", inventory.code, inventoryLines},
		{"daemon/turnover", turnover.code, turnoverLines},
	} {
		t.Logf("%s has %d lines of code, at most %d", limit.name, limit.lines, limit.most)
		if limit.lines > limit.most || limit.lines == 0 {
			t.Errorf("%s has %d lines of code, at most %d", limit.name, limit.lines, limit.most)
		}
	}
	ratio := float64(tests.code) / float64(product.code)
	t.Logf("%.2f lines of unit tests to a line of the product", ratio)
	if ratio > testsToProduct {
		t.Errorf("%.2f lines of unit tests to a line of the product, at most %.2f", ratio, testsToProduct)
	}
	inside := float64(white.code) / float64(product.code)
	t.Logf("%.2f of them in the package that they test", inside)
	if inside > whiteBox {
		t.Errorf("%.2f lines of tests in the package that they test to a line of the product, at most %.2f", inside, whiteBox)
	}
	if share := 100 * float64(product.comments) / float64(product.code+product.comments); share < commentsMin || share > commentsMax {
		t.Errorf("%.1f %% of the lines have a comment, not %d to %d", share, commentsMin, commentsMax)
	}
	count := 0
	for name, s := range sizes {
		if s.isInterface {
			count++
		}
		checkSize(t, name, [3]int{s.fields, s.booleans, s.methods})
	}
	if count > interfaces {
		t.Errorf("there are %d interfaces, at most %d", count, interfaces)
	}
}

// checkSize checks the size of a type against its limits.
func checkSize(t *testing.T, name string, has [3]int) {
	t.Helper()
	most := [3]int{structFields, structBooleans, typeMethods}
	for i, what := range []string{"fields", "boolean fields", "methods"} {
		if has[i] > most[i] {
			t.Errorf("%s has %d %s, at most %d: %v", name, has[i], what, most[i], has)
		}
	}
}

// TestImportChain limits the length of import chains. A reader of one package should not have to read many.
func TestImportChain(t *testing.T) {
	imports := make(map[string][]string)
	for _, p := range packages(t) {
		imports[p.ImportPath] = p.Imports
	}
	lengths := make(map[string]int)
	var length func(name string) int
	length = func(name string) int {
		if lengths[name] == 0 {
			for _, imported := range imports[name] {
				if strings.HasPrefix(imported, module) {
					lengths[name] = max(lengths[name], length(imported))
				}
			}
			lengths[name]++
		}
		return lengths[name]
	}
	longest := 0
	for name := range imports {
		longest = max(longest, length(name))
	}
	t.Logf("the longest chain of imports has %d packages", longest)
	if longest > importChain {
		t.Errorf("the longest chain of imports has %d packages, at most %d", longest, importChain)
	}
}
