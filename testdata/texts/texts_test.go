package texts

// What stands in README.md, in testdata/speed.md and in the lesson is true:
// what they name and link to exists, their commands and programs run, and each
// exported name has an Example. In the package's own folder:
//
//	go test ./testdata/texts

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// TestMain runs the tests in the folder of the package.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	m.Run()
}

// TestReadme checks that what README.md and testdata/speed.md link to, what
// their commands name, and every test, benchmark and Example that they or a
// comment of this file name, exist.
func TestReadme(t *testing.T) {
	names, source := declared(t)
	readme := string(must(os.ReadFile("README.md")))
	mentioned := regexp.MustCompile("`(?:Test|Fuzz|Benchmark)\\w+`").FindAllString(readme, -1)
	speed := string(must(os.ReadFile("testdata/speed.md")))
	texts := readme + speed + source["dataloader_test.go"]
	mentioned = append(mentioned, regexp.MustCompile(`\bExample(_|[A-Z])\w*`).FindAllString(texts,
		-1)...)
	for _, name := range mentioned {
		if !names[strings.Trim(name, "`")] {
			t.Errorf("there is no %s", name)
		}
	}
	for folder, text := range map[string]string{".": readme, "testdata": speed} {
		for _, link := range regexp.MustCompile(`\]\(([\w/.]+)\)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(folder, link[1])); err != nil {
				t.Error(err)
			}
		}
	}
	headings := strings.ReplaceAll(strings.ToLower(readme), " ", "-")
	for _, link := range regexp.MustCompile(`\]\(#([\w-]+)\)`).FindAllStringSubmatch(readme, -1) {
		equal(t, "whether there is the heading "+link[1],
			strings.Contains(headings, "\n##-"+link[1]+"\n"), true)
	}
	commands := regexp.MustCompile("(?m)^```\n((?:[^`\n].*\n)+)```|`((?:go|awk|python3) [^`\n]+)`")
	for _, found := range commands.FindAllStringSubmatch(speed, -1) {
		checkCommand(t, names, strings.TrimSpace(found[1]+found[2]))
	}
	for _, found := range commands.FindAllStringSubmatch(readme, -1) {
		for command := range strings.Lines(found[1] + found[2]) {
			t.Log("$", strings.TrimSpace(command)) // .ci/run reads the log
			checkCommand(t, names, strings.TrimSpace(command))
		}
	}
}

// TestReadmeTables runs each benchmark that a table of speed names, until it
// has printed a row. Those of recipes are declared.
func TestReadmeTables(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs benchmarks")
	}
	names, _ := declared(t)
	binary := filepath.Join(t.TempDir(), "dataloader.test")
	out, err := exec.Command("go", "test", "-c", "-o", binary, ".").CombinedOutput()
	failIf(t, err != nil, "%v: %s", err, out)
	readme, speed := must(os.ReadFile("README.md")), must(os.ReadFile("testdata/speed.md"))
	text := strings.ReplaceAll(string(readme)+string(speed), "\r", "")
	lastCell := regexp.MustCompile("\\| `(\\w+)([\\w/-]*)` \\|\n$")
	for _, table := range strings.Split(text, "| `-bench` |\n")[1:] {
		rows, _, _ := strings.Cut(table, "\n\n")
		for row := range strings.Lines(rows + "\n") {
			m := lastCell.FindStringSubmatch(row)
			if strings.HasPrefix(row, "|---") {
				continue
			}
			failIf(t, m == nil || !names["Benchmark"+m[1]], "no benchmark: %s", row)
			isOfRecipe := strings.Contains("Packing Images DecodedBatches FlatFile", m[1])
			failIf(t, !isOfRecipe && !runsBenchmark(binary, m[1]+m[2]), "nothing runs: %s", row)
		}
	}
}

// runsBenchmark reports whether -bench with this name prints a row.
func runsBenchmark(binary, name string) (found bool) {
	args := []string{"-test.run=^$", "-test.v", "-test.benchtime=1x", "-test.bench=" + name}
	bench := exec.Command(binary, args...)
	out := must(bench.StdoutPipe())
	must(0, bench.Start())
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		isRow := strings.HasPrefix(lines.Text(), "Benchmark")
		found = isRow && strings.Count(lines.Text(), "/") >= strings.Count(name, "/")
	}
	bench.Process.Kill() // the figures are not asked for
	bench.Wait()
	return found
}

// TestReadmePrograms builds and runs the programs of README.md: one in a module
// with a copy of this package, the other in this folder. They print what stands
// behind them.
func TestReadmePrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	_, source := declared(t)
	readme := strings.ReplaceAll(string(must(os.ReadFile("README.md"))), "\r", "")
	outputs := strings.Split(readme, "```text\n")[1:]
	printed, _, _ := strings.Cut(outputs[0], "```")
	shown, _, _ := strings.Cut(outputs[1], "```")
	training := exec.Command("go", "run", "./testdata/recipes/digits")
	trained, err := training.CombinedOutput()
	equal(t, fmt.Sprintf("%v: %s", training, trained), err, nil)
	for line := range strings.Lines(shown) {
		failIf(t, !strings.Contains(string(trained), "\n"+line), "%v does not show %s", training,
			line)
	}
	module := fstest.MapFS{"go.mod": {Data: []byte("module example.org/trainer\n\ngo 1.25\n")}}
	for name, text := range source {
		module["dataloader/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	program, _, _ := strings.Cut(strings.Split(readme, "```go\n")[1], "```")
	module["program/main.go"] = &fstest.MapFile{Data: []byte(program)}
	dir := t.TempDir()
	must(0, os.CopyFS(dir, module))
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		equal(t, fmt.Sprintf("%s: %s", name, out), err, nil)
		return string(out)
	}
	run("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin")+"/", "./program")
	equal(t, "what the program prints", run(filepath.Join(dir, "bin/program")), printed)
	lines := slices.Collect(strings.Lines(printed))
	for i, line := range lines {
		_, cursor, _ := strings.Cut(strings.TrimSpace(line), "] ")
		rest := run(filepath.Join(dir, "bin/program"), cursor)
		equal(t, "what the program prints after "+cursor, rest, strings.Join(lines[i+1:], ""))
	}
}

// checkCommand checks that the tests, flags and files that a command names
// exist.
func checkCommand(t *testing.T, names map[string]bool, command string) {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(command, "'", ""))
	for _, word := range words {
		if strings.HasPrefix(word, "./testdata/") { // a package of its own, with flags of its own
			_, err := os.Stat(word)
			equal(t, command, err, nil)
			return
		}
	}
	for i, word := range words {
		word = strings.TrimPrefix(word, "dataloader/") // the folder of a copy
		name, isFlag := strings.CutPrefix(word, "-")
		kind := map[string]string{"run": "^(Test|Example|Fuzz)", "bench": "^Benchmark",
			"fuzz": "^Fuzz"}[name]
		switch {
		case isFlag && kind != "" && words[i+1] != "^$":
			top, _, _ := strings.Cut(words[i+1], "/") // the rest names a part of a benchmark
			kind, pattern := regexp.MustCompile(kind), regexp.MustCompile(top)
			found := slices.DeleteFunc(slices.Collect(maps.Keys(names)), func(name string) bool {
				return !kind.MatchString(name) || !pattern.MatchString(name)
			})
			if len(found) == 0 || name == "fuzz" && len(found) > 1 {
				t.Errorf("%s: %s %s means %q", command, word, words[i+1], found)
			}
		case isFlag && words[1] == "test" && flag.Lookup("test."+name) == nil && !names["-"+name]:
			t.Errorf("%s: there is no flag %s", command, word)
		case regexp.MustCompile(`^(\./)?testdata|\.(go|md|py)$`).MatchString(word) &&
			words[i-1] != ">" && len(must(filepath.Glob(word))) == 0:
			t.Errorf("%s: there is no file %s", command, word)
		}
	}
}

// declared returns the names that the package and its recipes declare, as in
// "Sampler", "feistel.at" and, for a flag, "-update", and the package's source
// files. In a copy of the folder it skips the test: what stands there is the
// owner's to decide.
func declared(t *testing.T) (names map[string]bool, source map[string]string) {
	// line ends may be "\r\n"
	if mod, _ := os.ReadFile("go.mod"); !regexp.MustCompile(`^module dataloader\s`).Match(mod) {
		t.Skip("this folder is a copy, and its texts are its owner's")
	}
	names, source = map[string]bool{}, map[string]string{}
	recipes := must(filepath.Glob("testdata/recipes/*.go"))
	for _, name := range append(must(filepath.Glob("*.go")), recipes...) {
		text := string(must(os.ReadFile(name)))
		if !slices.Contains(recipes, name) {
			source[name] = text
		}
		for _, found := range regexp.MustCompile(`flag\.\w+\("(\w+)"`).FindAllStringSubmatch(text,
			-1) {
			names["-"+found[1]] = true
		}
		for _, decl := range must(parser.ParseFile(token.NewFileSet(), name, text, 0)).Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				receiver := ""
				if d.Recv != nil { // *engine[S]
					of := types.ExprString(d.Recv.List[0].Type)
					receiver = regexp.MustCompile(`\w+`).FindString(of) + "."
				}
				names[receiver+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						names[s.Name.Name] = true
					}
				}
			}
		}
	}
	return names, source
}

// eachNode calls f with every node of every function in source.
func eachNode(source map[string]string, f func(in *ast.FuncDecl, n ast.Node)) {
	for name, text := range source {
		for _, decl := range must(parser.ParseFile(token.NewFileSet(), name, text, 0)).Decls {
			if in, ok := decl.(*ast.FuncDecl); ok {
				ast.Inspect(in, func(n ast.Node) bool {
					f(in, n)
					return true
				})
			}
		}
	}
}

// TestExamples checks that each exported name has an Example of at most 25
// lines, beside its name. A type and its only constructor may share one; other
// methods, constants and variables occur in one.
func TestExamples(t *testing.T) {
	_, source := declared(t)
	fset, bodies := token.NewFileSet(), ""
	var files []*ast.File
	for name, text := range source {
		files = append(files, must(parser.ParseFile(fset, name, text, parser.ParseComments)))
	}
	for _, e := range doc.Examples(files...) {
		from, to := fset.Position(e.Code.Pos()), fset.Position(e.Code.End())
		bodies += source[from.Filename][from.Offset:to.Offset]
		isOfName := e.Name != "" && !strings.HasPrefix(e.Name, "_") // the others are the lesson's
		long := isOfName && to.Line-from.Line+1 > 25
		failIf(t, long, "%v: Example%s is longer than 25 lines", from, e.Name)
	}
	pkg := must(doc.NewFromFiles(fset, files, "dataloader"))
	occur := map[string]bool{} // what has no Example of its own, and must occur in one
	need := func(name string, examples int) {
		if examples == 0 {
			t.Errorf("%s has no Example", name)
		}
	}
	for _, f := range pkg.Funcs {
		need(f.Name, len(f.Examples))
	}
	values := slices.Concat(pkg.Consts, pkg.Vars)
	for _, typ := range pkg.Types {
		n := len(typ.Examples)
		for _, m := range typ.Methods {
			n += len(m.Examples)
			isOfLanguage := slices.Contains(strings.Fields("Error Unwrap String UnmarshalJSON"),
				m.Name)
			if len(m.Examples) == 0 && !isOfLanguage {
				occur["."+m.Name] = true
			}
		}
		made := 0
		for _, f := range typ.Funcs {
			made += len(f.Examples)
			if len(typ.Funcs) > 1 {
				need(f.Name, len(f.Examples))
			}
		}
		need(typ.Name, n+made)
		values = slices.Concat(values, typ.Consts, typ.Vars)
	}
	for _, value := range values {
		for _, name := range value.Names {
			occur[name] = true
		}
	}
	for name := range occur {
		failIf(t, !strings.Contains(bodies, name), "%s occurs in no Example", name)
	}
}

// TestFormats checks that a function with a format passes it on as it is.
// Otherwise go vet, and with it go test, would not check the function's calls.
func TestFormats(t *testing.T) {
	_, source := declared(t)
	given, passed := map[string]bool{}, map[string]bool{}
	eachNode(source, func(in *ast.FuncDecl, n ast.Node) {
		switch n := n.(type) {
		case *ast.FuncType:
			if strings.Contains(types.ExprString(n), "format string, args ...any)") {
				given[in.Name.Name] = true
			}
		case *ast.CallExpr:
			if strings.HasSuffix(types.ExprString(n), "(format, args...)") ||
				strings.HasSuffix(types.ExprString(n), ", format, args...)") {
				passed[in.Name.Name] = true
			}
		}
	})
	equal(t, "the functions that pass a format on", passed, given)
}

// TestLesson checks testdata/lesson.md: each Predict has a Run, a Read and a
// Why, what a Read or a row of the way of a batch names is declared, each
// command runs something, each line that a Break quotes stands in its function,
// and each link leads to a file or a heading. Each diff makes the next of the
// growing Examples from the one before.
func TestLesson(t *testing.T) {
	names, source := declared(t)
	lesson := string(must(os.ReadFile("testdata/lesson.md")))
	// Now an item stands on one line, without its marks.
	lesson = strings.NewReplacer("\r", "", "\n  ", " ", "**", "", "`", `"`).Replace(lesson)
	all := func(pattern, text string) [][]string {
		return regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(text, -1)
	}
	exercises := strings.Split(lesson, "\n- Predict: ")[1:]
	failIf(t, len(exercises) == 0, "no exercises")
	for _, exercise := range exercises {
		for _, part := range []string{"\n- Run: \"go test -", "\n- Read: \"",
			"\n<details><summary>Why</summary>\n\n"} {
			equal(t, fmt.Sprintf("%.40s: occurrences of %q", exercise, part),
				strings.Count(exercise, part), 1)
		}
		changes := strings.Contains(exercise, "\n- Break: ")
		equal(t, fmt.Sprintf("%.40s: says what a Break shows", exercise),
			strings.Contains(exercise, "\n<details><summary>After the change</summary>"), changes)
	}
	links := map[string]bool{} // to headings
	for _, heading := range all("^## (.+)", lesson) {
		links["#"+strings.NewReplacer(",", "", ".", "", " ",
			"-").Replace(strings.ToLower(heading[1]))] = true
	}
	for _, link := range all(`\]\((.+?)\)`, lesson) {
		_, err := os.Stat("testdata/" + link[1])
		onPage := strings.HasPrefix(link[1], "http://localhost:8080/?") // TestPlay asks for it
		failIf(t, err != nil && !links[link[1]] && !onPage, "%s leads nowhere", link[0])
	}
	for _, name := range []string{"TestMyWorker", "TestMyWorkers", "TestMyOrder"} {
		names[name] = true // in testdata/lesson
	}
	for _, command := range all(`"(go test -[^"]+)"`, lesson) {
		checkCommand(t, names, command[1])
	}
	for _, line := range all(`^(- Read|\| \w+): .*`, lesson) {
		for _, name := range all(`"([\w.]+)"`, line[0]) {
			failIf(t, !names[name[1]], "%s: there is no %s", line[0], name[1])
		}
	}
	solutions := string(must(os.ReadFile("testdata/lesson/solutions.md")))
	checkGrowth(t, string(must(os.ReadFile("testdata/lesson.md")))+"\n"+solutions,
		source["dataloader_test.go"])
	for _, item := range all("^- Break: .*", lesson) {
		pattern := `in "(?:(\w+)\.)?(\w+)" (?:replace|move|delete)(?: the second)? "([^"]+)"`
		part := all(pattern, item[0])[0] // type, function and code
		function := regexp.MustCompile(fmt.Sprintf(
			`(?ms)^func (\(\w+ \*?%s(\[\w+\])?\) )?%s\W.*?^}`, part[1], part[2]))
		stands := strings.Contains(function.FindString(fmt.Sprint(source)), part[3])
		failIf(t, !stands, "%s: there is no such code", item[0])
	}
}

// checkGrowth applies each diff of the lesson to the loader of one Example, and
// compares it with that of the next. Indentation and comments do not count. The
// first program of the lesson is the beginning: its loop is the loader of the
// first Example. That of the last Example is the one before it, unchanged.
func checkGrowth(t *testing.T, lesson, source string) {
	t.Helper()
	clean := func(text string) (lines string) {
		for line := range strings.Lines(strings.ReplaceAll(text, "\r", "")) {
			if line, _, _ = strings.Cut(line, "//"); strings.TrimSpace(line) != "" {
				lines += strings.Join(strings.Fields(line), " ") + "\n"
			}
		}
		return lines
	}
	loaderOf := func(name string) string {
		_, text, _ := strings.Cut(source, "\nfunc "+name+"() {\n")
		text, _, found := strings.Cut(text, "\n\t}\n")
		failIf(t, !found, "there is no %s", name)
		return clean(text)
	}
	source = strings.ReplaceAll(source, "\r", "")
	exercises := []string{"worker", "workers", "order"}
	program := loaderOf("Example_inTenLines")
	next := []string{"Example_oneWorker", "Example_outOfOrder", "Example_inFiftyLines"}
	diffs := regexp.MustCompile("(?ms)^```diff\r?\n(.*?)^```").FindAllStringSubmatch(lesson, -1)
	equal(t, "diffs", len(diffs), len(next))
	for i, diff := range diffs {
		name := "testdata/lesson/" + exercises[i] + "_test.go.txt"
		exercise := clean(string(must(os.ReadFile(name))))
		begins := strings.Contains(exercise, program)
		equal(t, "whether "+name+" has the loader to begin with", begins, true)
		for hunk := range strings.SplitSeq(strings.ReplaceAll(diff[1], "\r", ""), "…\n") {
			var before, after string
			for line := range strings.Lines(hunk) {
				if line[0] != '+' {
					before += line[1:]
				}
				if line[0] != '-' {
					after += line[1:]
				}
			}
			equal(t, "places of\n"+hunk, strings.Count(program, clean(before)), 1)
			program = strings.Replace(program, clean(before), clean(after), 1)
		}
		equal(t, next[i], program, loaderOf(next[i]))
	}
	equal(t, "Example_resumes", loaderOf("Example_resumes"), program)
}

// TestLessonWrites checks that the exercise of each Write fails as it stands,
// and passes with the loader that the lesson arrives at, and that the training
// of the last one prints the same batches in one life as in many.
func TestLessonWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles programs")
	}
	_, source := declared(t)
	loaderOf := func(example string) string {
		_, text, _ := strings.Cut(source["dataloader_test.go"], "\nfunc "+example+"() {\n")
		text, _, _ = strings.Cut(text, "\n\t}\n\n")
		return text + "\n\t}\n\n"
	}
	for _, write := range []struct{ file, test, solution string }{
		{"worker", "TestMyWorker", "Example_oneWorker"},
		{"workers", "TestMyWorkers", "Example_outOfOrder"},
		{"order", "TestMyOrder", "Example_inFiftyLines"},
	} {
		exercise := must(os.ReadFile("testdata/lesson/" + write.file + "_test.go.txt"))
		text := strings.ReplaceAll(string(exercise), "\r", "")
		begin, rest, _ := strings.Cut(text, "(t *testing.T) {\n")
		_, end, _ := strings.Cut(rest, "\n\t}\n\n")
		for _, c := range []struct {
			text   string
			passes bool
		}{{text, false}, {begin + "(t *testing.T) {\n" + loaderOf(write.solution) + end, true}} {
			dir := t.TempDir()
			must(0, os.CopyFS(dir, fstest.MapFS{
				"go.mod":    {Data: []byte("module example.org/lesson\n\ngo 1.25\n")},
				"x_test.go": {Data: []byte(c.text)},
			}))
			cmd := exec.Command("go", "test", "-vet=off", "-timeout", "9s", "-run", write.test, ".")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			equal(t, fmt.Sprintf("whether %s passes: %s", write.test, out), err == nil, c.passes)
		}
	}
	solutions := string(must(os.ReadFile("testdata/lesson/solutions.md")))
	_, program, _ := strings.Cut(strings.ReplaceAll(solutions, "\r", ""), "```go\npackage main")
	program, _, _ = strings.Cut(program, "```")
	dir := t.TempDir()
	must(0, os.CopyFS(dir, fstest.MapFS{
		"go.mod":  {Data: []byte("module train\n\ngo 1.25\n")},
		"main.go": {Data: []byte("package main" + program)},
	}))
	live := func(args ...string) (printed string, err error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	bin := filepath.Join(dir, "train.exe")
	_, err := live("go", "build", "-o", bin, ".")
	equal(t, "building the training", err, nil)
	whole := must(live(bin, "3"))
	equal(t, "batches", strings.Count(whole, "\n"), 24)
	for _, steps := range []string{"1", "5"} {
		parts := ""
		err := errors.New("not begun")
		for life := 0; err != nil && life < 100; life++ {
			var printed string
			printed, err = live(bin, strconv.Itoa(1+life%4), steps)
			parts += printed
		}
		equal(t, steps+" steps in a life", parts, whole)
	}
}

// must returns v of a call that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// equal fails the test if got is not want.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// failIf fails the test if something is wrong.
func failIf(t *testing.T, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
	}
}
