// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
)

// pages builds the man pages and returns their rendered text by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	command := exec.Command("../../packaging/docs.sh", dir)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("docs.sh: %v\n%s", err, out)
	}
	all := make(map[string]string)
	for _, name := range []string{"metalplugd.8", "metalplug-reset.8", "metalplug-dra.8", "metalplugctl.1", "metalplug.toml.5"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = strings.NewReplacer(`Fl \-`, "--", `\-`, "-", `\e`, `\`).Replace(string(content))
	}
	return all
}

func TestManPagesAreComplete(t *testing.T) {
	all := pages(t)
	want := func(page string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !regexp.MustCompile(`(^|[^a-z_-])` + regexp.QuoteMeta(word) + `($|[^a-z_])`).MatchString(all[page]) {
				t.Errorf("%s does not say %s", page, word)
			}
		}
	}
	reference, err := os.ReadFile("../../daemon/config/metalplug.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range regexp.MustCompile(`(?m)^#([a-z_]+) = `).FindAllStringSubmatch(string(reference), -1) {
		want("metalplug.toml.5", setting[1])
	}
	for _, class := range device.Classes {
		want("metalplug.toml.5", class.Name)
	}
	for _, name := range flags(t, "cmd/metalplugd/") {
		want("metalplugd.8", "--"+name)
	}
	for _, name := range append(flags(t, "cmd/metalplugctl/"), "help") {
		want("metalplugctl.1", "--"+name)
	}
	for _, name := range commands(t) {
		want("metalplugctl.1", ".Ss "+name)
	}
	for _, pattern := range []string{"systemd/metalplugd*.*", "systemd/*[rst].socket", "systemd/*.target"} {
		want("metalplugd.8", names(t, pattern)...)
	}
	want("metalplug-dra.8", names(t, "systemd/metalplug-dra.s*[et]")...)
	for _, name := range wordsIn(t, "daemon/dra/metalplug-dra/main.go", `flags\.(?:String|Bool)\("([a-z-]+)"`) {
		want("metalplug-dra.8", "--"+name)
	}
	want("metalplug-reset.8", wordsIn(t, "daemon/reset/method.go", `[ \t]"([a-z-]+)"[,:]`)...)
	want("metalplug-reset.8", wordsIn(t, "daemon/reset/erase.go", `"([a-z-]+)": +\{`)...)
	want("metalplug-reset.8", wordsIn(t, "daemon/reset/reset.go", `Result = "([a-z]+)"`)...)
	for _, class := range device.Classes {
		want("metalplug-reset.8", ".It "+class.Name)
	}
	for _, boolean := range regexp.MustCompile(`gen_tunable\(([a-z_]+),`).FindAllStringSubmatch(text(t, "selinux/metalplug.te"), -1) {
		want("metalplugd.8", boolean[1])
	}
	for page, content := range all {
		if regexp.MustCompile(`(?m)^@[A-Z]+@`).MatchString(content) {
			t.Errorf("%s has a place that was not filled", page)
		}
	}
}

// wordsIn returns the matches of a pattern's first group in a file.
func wordsIn(t *testing.T, file, pattern string) []string {
	t.Helper()
	var all []string
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text(t, file), -1) {
		all = append(all, found[1])
	}
	if len(all) < 2 {
		t.Fatalf("%s has %q: this test looks at the wrong place", file, all)
	}
	return all
}

// flags returns the flags of a program. They are the first arguments of the calls to a flag set's methods.
func flags(t *testing.T, folder string) []string {
	t.Helper()
	var all []string
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.name, folder) {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !regexp.MustCompile(`^(Persistent)?(String|Bool|Int|Duration|StringArray)(Var)?P?$`).MatchString(method.Sel.Name) {
				return true
			}
			at := 0
			if strings.Contains(method.Sel.Name, "Var") {
				at = 1
			}
			if len(call.Args) < at+3 {
				return true // a flag has a name, a default and a text
			}
			if literal, ok := call.Args[at].(*ast.BasicLit); ok {
				if name, err := strconv.Unquote(literal.Value); err == nil {
					all = append(all, name)
				}
			}
			return true
		})
	}
	if len(all) == 0 {
		t.Fatalf("%s has no flag: this test looks at the wrong place", folder)
	}
	return all
}

// commands lists the commands of metalplugctl.
func commands(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, name := range names(t, "cmd/metalplugctl/help/*.txt") {
		if name = strings.TrimSuffix(name, ".txt"); name != "metalplugctl" {
			all = append(all, name)
		}
	}
	return all
}

// TestClassComments checks the comment at the top of each class file. It must answer an operator's first
// questions about such devices.
func TestClassComments(t *testing.T) {
	found := 0
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.name, "daemon/device/") || s.name == "daemon/device/bundle.go" ||
			!regexp.MustCompile(`(?m)^var \w+ = Class\{`).MatchString(text(t, s.name)) {
			continue
		}
		found++
		head, _, _ := strings.Cut(text(t, s.name), "\nimport (")
		for _, part := range []string{"Follows", "Identity", "Health", "Nodes", "Reset", "Needs"} {
			if !strings.Contains(head, "\n// "+part+": ") {
				t.Errorf("%s: its head has no %q", s.name, part)
			}
		}
	}
	if found != len(device.Classes) {
		t.Errorf("%d of %d classes have a head", found, len(device.Classes))
	}
}

// TestPolicyLabelsWhatIsInstalled checks that each program, unit and directory has a label. Without one it would run
// unconfined.
func TestPolicyLabelsWhatIsInstalled(t *testing.T) {
	var patterns []*regexp.Regexp
	for line := range strings.Lines(text(t, "selinux/metalplug.fc")) {
		if strings.HasPrefix(line, "/") {
			patterns = append(patterns, regexp.MustCompile("^"+strings.Fields(line)[0]+"$"))
		}
	}
	c := config.Default()
	paths := []string{
		"/usr/sbin/metalplugd", "/usr/libexec/metalplug/metalplug-reset", "/usr/libexec/metalplug/metalplug-holders",
		config.DefaultFile, c.Paths.State, c.Paths.Run, c.Reset.Socket, c.Reset.Holders, c.Paths.CDI,
		c.Paths.DevicePlugins + "/mp-01234567-abc.sock",
	}
	for _, name := range names(t, "systemd/metalplug*.s*[et]") {
		paths = append(paths, "/usr/lib/systemd/system/"+name)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(path) }) {
			t.Errorf("metalplug.fc has no label for %s", path)
		}
	}
}

// TestInstallSkipsOtherBuilds checks that make install works after make cluster or make dra-sanity, which also build into bin.
func TestInstallSkipsOtherBuilds(t *testing.T) {
	programs, documents, root := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(programs, "cluster"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(programs, "metalplugd"), filepath.Join(programs, "dra-sanity")}
	for _, name := range []string{"metalplugd.8", "metalplugctl.bash", "metalplugctl.zsh", "metalplugctl.fish"} {
		files = append(files, filepath.Join(documents, name))
	}
	for _, file := range files {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("../../packaging/install.sh", programs, documents, root).CombinedOutput(); err != nil {
		t.Fatalf("install.sh: %v\n%s", err, out)
	}
	if installed, err := filepath.Glob(root + "/usr/*bin/*"); err != nil || !slices.Equal(installed, []string{root + "/usr/sbin/metalplugd"}) {
		t.Errorf("installed programs: %q, %v", installed, err)
	}
}

// TestCertificateNeedsANode checks that certificate.sh shows its usage if the Node's name is missing.
func TestCertificateNeedsANode(t *testing.T) {
	out, err := exec.Command("sh", "../../packaging/kubernetes/certificate.sh").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "usage: certificate.sh NODE") {
		t.Errorf("%v, %s", err, out)
	}
}

// TestPolicyIsMoreSpecificThanTheBase checks that no expression of the base policy takes precedence over one of ours.
// Otherwise our label would have no effect.
func TestPolicyIsMoreSpecificThanTheBase(t *testing.T) {
	wide := []string{"/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib/systemd/system", "/etc", "/run", "/var/lib/kubelet/device-plugins"}
	for line := range strings.Lines(text(t, "selinux/metalplug.fc")) {
		if !strings.HasPrefix(line, "/") {
			continue
		}
		expression := strings.Fields(line)[0]
		for _, dir := range wide {
			below := regexp.MustCompile("^" + expression + "$").MatchString
			if below(dir+"/metalplugd") && stem(expression) <= len(dir) {
				t.Errorf("%s loses against %s(/.*)? of the base policy", expression, dir)
			}
		}
	}
}

// stem returns the length of an expression up to its first special character. This length decides which of two
// expressions is more specific (semanage_fc_compare, libsemanage/src/semanage_store.c).
func stem(expression string) int {
	if i := strings.IndexAny(expression, `.^$?*+|[({\`); i >= 0 && i < len(expression)-1 {
		return i
	}
	return len(expression) + 1 // an expression without special characters takes precedence over all others
}

// The tests that a README names must exist. Otherwise a reader could not find the proof of a statement.
func TestReadmeTestsExist(t *testing.T) {
	tests := make(map[string]bool)
	for _, pattern := range []string{"cgroup/*", "cmd/*/*", "daemon/*", "daemon/*/*", "integration/*/*"} {
		files, err := filepath.Glob("../../" + pattern + "_test.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no tests: %v", pattern, err)
		}
		for _, file := range files {
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text(t, strings.TrimPrefix(file, "../../")), -1) {
				tests[found[1]] = true
			}
		}
	}
	all := []string{"README.md", "integration/README.md", "integration/devicemanager/README.md", "integration/vm/README.md"}
	for _, name := range names(t, "docs/*.md") {
		all = append(all, "docs/"+name)
	}
	for _, readme := range all {
		for _, found := range regexp.MustCompile("`[^`]*\\b(Test[A-Z]\\w*)[^`]*`").FindAllStringSubmatch(text(t, readme), -1) {
			if !tests[found[1]] {
				t.Errorf("%s names %s, which is no test", readme, found[1])
			}
		}
	}
}

// A scenario has tests in its folder, or a reason why it has none.
func TestScenariosHaveTests(t *testing.T) {
	const folder = "integration/devicemanager/"
	tests := ""
	for _, name := range names(t, folder+"*_test.go") {
		tests += text(t, folder+name)
	}
	_, section, _ := strings.Cut(text(t, folder+"README.md"), "\n## Scenarios by name\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| ([a-z-]+) \| (.*) \|$`).FindAllStringSubmatch(section, -1)
	if len(rows) < 20 {
		t.Fatalf("the README has %d scenarios: this test looks at the wrong place", len(rows))
	}
	for i, row := range rows[1:] {
		if row[1] <= rows[i][1] && i > 0 {
			t.Errorf("%s stands below %s", row[1], rows[i][1])
		}
		if regexp.MustCompile(`^none: \S+ \S+`).MatchString(row[2]) {
			continue
		}
		first := regexp.MustCompile("^`(Test[A-Z]\\w*)`").FindStringSubmatch(row[2])
		if first == nil || !strings.Contains(tests, "\nfunc "+first[1]+"(") {
			t.Errorf("%s has %q: neither a test of %s nor a reason", row[1], row[2], folder)
		}
	}
}

// TestLinksOfDocuments checks that a link within the repository leads to an existing file and heading.
func TestLinksOfDocuments(t *testing.T) {
	all := []string{"README.md", "integration/README.md"}
	for _, name := range names(t, "docs/*.md") {
		all = append(all, "docs/"+name)
	}
	for _, from := range all {
		for _, found := range regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(text(t, from), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			to := from
			if found[1] != "" {
				to = filepath.Join(filepath.Dir(from), found[1])
			}
			if _, err := os.Stat("../../" + to); err != nil {
				t.Errorf("%s links to %s: %v", from, to, err)
			} else if found[2] != "" && !slices.Contains(anchors(text(t, to)), found[2]) {
				t.Errorf("%s links to %s#%s, which is no heading", from, to, found[2])
			}
		}
	}
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(page string) []string {
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(kept, " ", "-"))
	}
	return all
}

// TestListsHaveLines checks that no paragraph contains a list item, a comment of a command or a fence. A program that fills
// paragraphs would also join the lines of a list or of a code block.
func TestListsHaveLines(t *testing.T) {
	code := regexp.MustCompile("(?ms)^```.*?^```$|^(?: {4}|\\|)[^\n]*$")
	joined := regexp.MustCompile("\\S.* (?:-|[2-9]\\.) [`*A-Z]|```| {2,}# ")
	for _, pattern := range []string{"*.md", "docs/*.md", "integration/*.md", "integration/*/*.md"} {
		files, err := filepath.Glob("../../" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			for line := range strings.Lines(code.ReplaceAllString(text(t, strings.TrimPrefix(file, "../../")), "")) {
				if joined.MatchString(line) {
					t.Errorf("%s: a paragraph contains a list item or a command: %s", file, line)
				}
			}
		}
	}
}

// TestCodeHasLines checks that each line of an example contains one command or one setting. A program that fills paragraphs
// would join the lines.
func TestCodeHasLines(t *testing.T) {
	blocks := regexp.MustCompile("(?m)^```(.*)\n((?:.*\n)*?)```$|^\n((?: {4}\\S.*\n)+)")
	prefix := regexp.MustCompile(`^ *(env \S+ |[A-Z_]+=\S* )?`)
	command := regexp.MustCompile(`^(curl|dra-sanity|journalctl|kubectl|make|metalplugctl|nvidia-ctk|ss|ssh|sysctl|systemctl|udevadm|apt|cp|dnf|editor|rm|sh) |^(\[|\w+ ?=)`)
	second := map[string]*regexp.Regexp{
		"":     regexp.MustCompile(` # .* # |^[^#]*[\w./"-] (apt|dnf|journalctl|kubectl|make|metalplugctl|systemctl) `),
		"toml": regexp.MustCompile(`#.* \w+ *= *["\[{]`),
		"yaml": regexp.MustCompile(`^[^{\["'#]*\w: [^{\["'#]*\w: `),
	}
	found := 0
	for _, name := range append(names(t, "docs/*.md"), "../README.md") {
		for _, block := range blocks.FindAllStringSubmatch(text(t, filepath.Join("docs", name)), -1) {
			language, content := block[1], block[2]+block[3]
			if language == "toml" {
				if err := toml.Unmarshal([]byte(content), new(any)); err != nil {
					t.Errorf("%s: an example is not TOML: %v\n%s", name, err, content)
				}
			}
			before := "" // the line above
			for line := range strings.Lines(content) {
				rest := prefix.ReplaceAllString(strings.NewReplacer("sudo ", "", "bin/", "").Replace(line), "")
				isCommand := language != "" || command.MatchString(rest) || strings.HasSuffix(before, "\\\n")
				if before == "" && !isCommand {
					break // a picture, or the output of a command
				}
				if !isCommand || second[language] != nil && second[language].MatchString(rest) {
					t.Errorf("%s: a line of an example is not one command or setting: %s", name, line)
				}
				before = line
				found++
			}
		}
	}
	if found < 300 {
		t.Fatalf("the examples have %d lines: this test looks at the wrong place", found)
	}
}

// TestExampleOfAdopt checks the messages in the example of the command adopt. metalplugctl cannot adopt the disk of a recording,
// so the test of the other examples cannot run this command.
func TestExampleOfAdopt(t *testing.T) {
	example := text(t, "packaging/man/examples/adopt.txt")
	if !strings.Contains(text(t, "docs/operating.md"), "\n"+example) {
		t.Error("docs/operating.md has another example of adopt than the man page")
	}
	programs := text(t, "cmd/metalplugctl/change.go") + text(t, "daemon/verdict/disk.go") + text(t, "daemon/turnover/manual.go")
	example = strings.Join(strings.Fields(example), " ")
	for _, message := range []string{
		" erases and offers the disk", "Everything on ", " will be lost.", "Type its ID to erase it: ", "adopted, being erased", "the disk is being erased with ",
		", and will then be offered",
	} {
		if !strings.Contains(example, message) || !strings.Contains(programs, message) {
			t.Errorf("the example of adopt or the programs do not contain %q", message)
		}
	}
}
