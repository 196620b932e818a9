// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// classNode maps a kernel subsystem, given by the second byte of its ioctl numbers, to the nodes that accept them, as
// type and class in the policy (include/uapi/linux, Documentation/userspace-api/ioctl/ioctl-number.rst).
var classNode = map[uint64][]string{
	0x12: {"fixed_disk_device_t:blk_file"},
	0x4c: {"fixed_disk_device_t:blk_file"},
	0x4e: {"fixed_disk_device_t:blk_file", "fixed_disk_device_t:chr_file"},
	0xb6: {"metalplug_dfl_device_t:chr_file"},
	0x3b: {"vfio_device_t:chr_file"},
}

// TestPolicyAllowsTheIoctlsOfTheCode checks that the policy allows exactly the ioctls in the code. SELinux compares
// only the low 16 bits (ioctl_has_perm in security/selinux/hooks.c).
func TestPolicyAllowsTheIoctlsOfTheCode(t *testing.T) {
	made := make(map[uint64]string)
	for folder, files := range byFolder(sources(t)) {
		maps.Copy(made, ioctls(t, folder, files))
	}
	if len(made) < 10 {
		t.Fatalf("%d ioctls found in the code: this test looks at the wrong place", len(made))
	}
	allowed := make(map[uint64][]string)
	rule := regexp.MustCompile(`(?m)^allowxperm metalplug_reset_t (\S+) ioctl \{([^}]*)\};$`)
	for _, match := range rule.FindAllStringSubmatch(text(t, "selinux/metalplug.te"), -1) {
		for _, number := range strings.Fields(match[2]) {
			value, err := strconv.ParseUint(number, 0, 16)
			if err != nil {
				t.Fatalf("metalplug.te: ioctl %s: %v", number, err)
			}
			allowed[value] = append(allowed[value], match[1])
		}
	}
	for number, name := range made {
		where := allowed[number]
		if len(where) == 0 {
			t.Errorf("%s makes ioctl %#x, which metalplug.te does not allow for metalplug_reset_t", name, number)
		}
		for _, node := range where {
			if !slices.Contains(classNode[number>>8], node) {
				t.Errorf("metalplug.te allows %s (%#x) for %s, want one of %q", name, number, node, classNode[number>>8])
			}
		}
	}
	for number, nodes := range allowed {
		if made[number] == "" {
			t.Errorf("metalplug.te allows ioctl %#x for %q, which no code makes", number, nodes)
		}
	}
}

// TestPolicyGivesTypesToInterfaces checks that interfaces of the base policy are called with a type, and not with an
// attribute or set. Interfaces of Fedora and RHEL add their argument to an attribute, which accepts only types
// (kernel_read_system_state in policy/modules/kernel/kernel.if of fedora-selinux/selinux-policy). Otherwise the module
// would compile only for refpolicy.
func TestPolicyGivesTypesToInterfaces(t *testing.T) {
	policy := text(t, "selinux/metalplug.te") + text(t, "selinux/metalplug.if")
	var attributes []string
	for _, declared := range regexp.MustCompile(`(?m)^\s*attribute ([^;]+);`).FindAllStringSubmatch(policy, -1) {
		attributes = append(attributes, strings.FieldsFunc(declared[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	calls := regexp.MustCompile(`(?m)^\s*([a-z0-9_]+)\(([^`+"`"+`)]+)\)`).FindAllStringSubmatch(policy, -1)
	if len(calls) < 40 || len(attributes) == 0 {
		t.Fatalf("%d calls and %d attributes found: this test looks at the wrong place", len(calls), len(attributes))
	}
	for _, call := range calls {
		// Patterns and our own interfaces consist of allow rules.
		if strings.HasSuffix(call[1], "_pattern") || strings.HasPrefix(call[1], "metalplug") {
			continue
		}
		if first, _, _ := strings.Cut(call[2], ","); strings.Contains(first, "{") || slices.Contains(attributes, first) {
			t.Errorf("%s(%s) does not compile where the interface adds its argument to an attribute: call it for each type", call[1], call[2])
		}
	}
}

// TestPolicyCommentsHaveNoQuotes checks that no comment inside a macro has a quote of m4. There m4 reads quotes in
// comments too. Then the module does not compile, or a macro ends too early.
func TestPolicyCommentsHaveNoQuotes(t *testing.T) {
	comment := regexp.MustCompile("(?m)^.+#.*['`].*$") // a comment at the start of a line is outside all macros
	for _, name := range []string{"selinux/metalplug.te", "selinux/metalplug.if"} {
		for _, line := range comment.FindAllString(text(t, name), -1) {
			t.Errorf("%s: %q has a quote: m4 ends the macro there", name, line)
		}
	}
}

// byFolder groups the sources of metalplug-reset by package folder. metalplug-holders is omitted, because its ioctls
// are on procfs files, for which its domain has all of read_file_perms.
func byFolder(all []source) map[string][]source {
	folders := make(map[string][]source)
	for _, s := range all {
		if folder := path.Dir(s.name); strings.HasPrefix(folder, "daemon") {
			folders[folder] = append(folders[folder], s)
		}
	}
	return folders
}

// ioctls returns the ioctls of a package, by their low 16 bits. An ioctl is the argument of a parameter named "request"
// (see daemon/reset/kernel.go). The constant must be in the same package or in golang.org/x/sys/unix.
func ioctls(t *testing.T, folder string, files []source) map[uint64]string {
	t.Helper()
	constants, takers := unixConstants(t), make(map[string]int)
	for _, s := range files {
		ast.Inspect(s.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if i < len(n.Values) {
						addConstant(constants, name.Name, n.Values[i])
					}
				}
			case *ast.FuncDecl:
				addTaker(takers, n.Name.Name, n.Type)
			case *ast.Field:
				if f, ok := n.Type.(*ast.FuncType); ok {
					for _, name := range n.Names {
						addTaker(takers, name.Name, f)
					}
				}
			}
			return true
		})
	}
	made := make(map[uint64]string)
	for _, s := range files {
		ast.Inspect(s.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := called(call)
			if name == "Syscall" && argument(call, 2) == "procmapQueryIoctl" {
				return true // a procfs file, for which read permission is enough
			}
			if strings.HasPrefix(name, "Ioctl") || name == "Syscall" && strings.Contains(argument(call, 0), "SYS_IOCTL") && argument(call, 2) != "request" {
				t.Errorf("%s: %s makes an ioctl beside the kernel's seam, where this test does not see it", s.name, name)
			}
			i, takes := takers[name]
			if !takes || i >= len(call.Args) {
				return true
			}
			request := argument(call, i)
			if value, known := constants[request]; known {
				made[value&0xffff] = folder + "." + request
			} else if request != "request" {
				t.Errorf("%s: the ioctl %q of %s is not a constant of the package, so that this test does not know it", s.name, request, name)
			}
			return true
		})
	}
	return made
}

// unixConstants returns the constants of golang.org/x/sys/unix that are plain numbers.
func unixConstants(t *testing.T) map[string]uint64 {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	constants := make(map[string]uint64)
	for _, name := range []string{"zerrors_linux.go", "zerrors_linux_amd64.go"} { // arm64 has the same numbers
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if n, ok := n.(*ast.ValueSpec); ok && len(n.Values) > 0 {
				addConstant(constants, n.Names[0].Name, n.Values[0])
			}
			return true
		})
	}
	return constants
}

// addConstant records a constant that is a plain number.
func addConstant(constants map[string]uint64, name string, value ast.Expr) {
	if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.INT {
		if number, err := strconv.ParseUint(literal.Value, 0, 64); err == nil {
			constants[name] = number
		}
	}
}

// addTaker records the index of a function's parameter for an ioctl number.
func addTaker(takers map[string]int, function string, signature *ast.FuncType) {
	i := 0
	for _, field := range signature.Params.List {
		kind, _ := field.Type.(*ast.Ident)
		for _, name := range field.Names {
			if name.Name == "request" && kind != nil && kind.Name == "uintptr" {
				takers[function] = i
			}
			i++
		}
	}
}

// called returns the name of the called function, without package or receiver.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// argument returns the name of a call's argument, or Go's debugging form of another expression.
func argument(call *ast.CallExpr, i int) string {
	if i >= len(call.Args) {
		return ""
	}
	switch a := call.Args[i].(type) {
	case *ast.Ident:
		return a.Name
	case *ast.SelectorExpr:
		return a.Sel.Name
	default:
		return fmt.Sprintf("%T", a)
	}
}
