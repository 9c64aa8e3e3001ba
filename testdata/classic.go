//go:build ignore

// This program writes the classic loader into a folder: map-style data sets,
// samplers, collate functions, workers and cursors, with their tests and a
// training, and no streams and no tar shards. Run it in the folder of the
// package:
//
//	go run testdata/classic.go DIR
//
// The files of the package are read in two halves, and the first half does not
// need the second. So the program cuts each file at its line "Second reading",
// and leaves out the imports that only the second half uses. It writes a go.mod
// if DIR is in no module, and refuses a DIR that has the whole package. The
// training, testdata/recipes/digits, and the page of the lesson, testdata/play,
// import DIR.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: go run testdata/classic.go DIR")
	}
	if _, err := os.Stat(filepath.Join(os.Args[1], "tar.go")); err == nil {
		log.Fatalf("%s has the whole package: give another folder", os.Args[1])
	}
	names := []string{
		"dataloader.go", "dataset.go", "sampler.go", "batch.go", "worker.go",
		"dataloader_test.go", "bench_test.go", "testdata/lesson.md",
		"testdata/batch.svg", "testdata/ranks.svg", "testdata/lowwater.svg",
		"testdata/timeline.svg", "testdata/timeline.txt", "testdata/torch_orders.json",
		"testdata/digits.zip", "testdata/teaching.md", "testdata/lesson/solutions.md",
		"testdata/lesson/worker_test.go.txt", "testdata/lesson/workers_test.go.txt",
		"testdata/lesson/order_test.go.txt",
	}
	names = append(names, users...)
	alone := !inModule(os.Args[1])
	if alone {
		names = append(names, "go.mod")
	}
	for _, name := range names {
		if err := write(os.Args[1], name); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
	if err := importFolder(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	if alone {
		fmt.Println("wrote go.mod, too: the folder is in no module. " +
			"Remove it when the folder becomes part of one.")
	}
}

// users are the files that import the package.
var users = []string{
	"testdata/recipes/digits/main.go", "testdata/play/play_test.go",
	"testdata/play/scenario_test.go", "testdata/play/timeline_test.go",
	"testdata/play/ideas_test.go",
}

// inModule reports whether a folder above dir has a go.mod.
func inModule(dir string) bool {
	dir, err := filepath.Abs(dir)
	for err == nil && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return true
		}
	}
	return false
}

// write writes a file of the package, or its first half, into dir.
func write(dir, name string) error {
	data, err := os.ReadFile(name)
	text := string(data)
	if path.Ext(name) != ".zip" {
		text = strings.ReplaceAll(text, "\r\n", "\n")
	}
	if err == nil && path.Ext(name) == ".go" && !slices.Contains(users, name) {
		text, err = firstHalf(text)
		fmt.Printf("%5d lines of %s\n", strings.Count(text, "\n"), name)
	}
	if err != nil {
		return err
	}
	name = filepath.Join(dir, name)
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o777),
		os.WriteFile(name, []byte(text), 0o666))
}

// firstHalf returns what stands before the line "Second reading", without the
// imports that it does not use.
func firstHalf(text string) (string, error) {
	half, _, found := strings.Cut(text, "\n// Second reading")
	if !found {
		return "", errors.New("no line begins with // Second reading")
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", half, 0)
	if err != nil {
		return "", err
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := selector.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	lines := strings.SplitAfter(half, "\n")
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return "", err
		}
		if !used[path.Base(strings.TrimSuffix(imported, "/v2"))] {
			lines[fset.Position(spec.Pos()).Line-1] = ""
		}
	}
	return strings.Join(lines, ""), nil
}

// importFolder makes the users in dir import the package in dir, by the path
// that its go.mod, or that of a folder above it, gives it.
func importFolder(dir string) error {
	list := exec.Command("go", "list")
	list.Dir, list.Stderr = dir, os.Stderr
	importPath, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	quoted := strconv.Quote(strings.TrimSpace(string(importPath)))
	for _, name := range users {
		name = filepath.Join(dir, name)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		changed := strings.Replace(string(text), "\t\"dataloader\"\n", "\t"+quoted+"\n", 1)
		if err := os.WriteFile(name, []byte(changed), 0o666); err != nil {
			return err
		}
	}
	return nil
}
