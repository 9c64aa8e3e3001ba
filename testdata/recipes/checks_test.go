package recipes

// The tests of the recipes themselves. The recipes need nothing of this file.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"image"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dataloader"
)

// TestIndex checks that README.md names each recipe, with a link to its file,
// and nothing that does not exist.
func TestIndex(t *testing.T) {
	index := string(must(os.ReadFile("README.md")))
	linked := map[string]string{} // the file of each name
	for _, link := range regexp.MustCompile(`\[(.+?)\]\((.+?)\)`).FindAllStringSubmatch(index, -1) {
		file, _, _ := strings.Cut(link[2], "#")
		_, err := os.Stat(file)
		equal(t, link[0], err, nil)
		linked[strings.Trim(link[1], "`")] = link[2]
	}
	examples := regexp.MustCompile(`(?m)^func (Example\w*)\(`)
	for _, file := range must(filepath.Glob("*_test.go")) {
		for _, example := range examples.FindAllStringSubmatch(string(must(os.ReadFile(file))),
			-1) {
			equal(t, "the link of "+example[1], linked[example[1]], file)
		}
	}
	var others []string
	inside := string(must(os.ReadFile("../../dataloader_test.go")))
	for _, example := range examples.FindAllStringSubmatch(inside, -1) {
		others = append(others, example[1])
	}
	for _, name := range regexp.MustCompile("`(Example\\w*)`").FindAllStringSubmatch(index, -1) {
		exists := linked[name[1]] != "" || slices.Contains(others, name[1])
		failIf(t, !exists, "there is no %s", name[1])
	}
}

// TestPasted pastes each recipe, with all that it refers to, into a package of
// its own, and compiles it. What a recipe refers to stands in its file.
func TestPasted(t *testing.T) {
	fset := token.NewFileSet()
	parse := func(pattern string) (files []*ast.File) {
		for _, name := range must(filepath.Glob(pattern)) {
			files = append(files, must(parser.ParseFile(fset, name, nil,
				parser.SkipObjectResolution)))
		}
		return files
	}
	library := slices.DeleteFunc(parse("../../*.go"), func(f *ast.File) bool {
		return strings.HasSuffix(fset.Position(f.Pos()).Filename, "_test.go")
	})
	imports := &importing{std: importer.ForCompiler(fset, "source", nil)}
	compile := func(path string, files []*ast.File, info *types.Info) (*types.Package, error) {
		config := types.Config{Importer: imports}
		return config.Check(path, fset, files, info)
	}
	var err error
	imports.dataloader, err = compile("dataloader", library, nil)
	equal(t, "the package", err, nil)
	recipes := parse("*_test.go")
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	all, err := compile("recipes", recipes, info)
	equal(t, "the recipes", err, nil)
	for _, file := range recipes {
		for _, decl := range file.Decls {
			example, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(example.Name.Name, "Example") {
				continue
			}
			pasted := paste(file, info.Defs[example.Name], all.Scope(), info)
			_, err := compile("pasted", []*ast.File{pasted}, nil)
			where := fset.Position(example.Pos()).Filename
			failIf(t, err != nil, "%s of %s needs what does not stand there: %v", example.Name,
				where, err)
		}
	}
}

// importing imports the package that is tested here, and the standard library
// from its source.
type importing struct {
	std        types.Importer
	dataloader *types.Package
}

func (i *importing) Import(path string) (*types.Package, error) {
	if path == "dataloader" {
		return i.dataloader, nil
	}
	return i.std.Import(path)
}

// paste returns the part of a file that root refers to: the declarations of the
// scope, with their methods, and the imports that they use.
func paste(file *ast.File, root types.Object, scope *types.Scope, info *types.Info) *ast.File {
	needed, imported := map[types.Object]bool{root: true}, map[string]bool{}
	part := &ast.File{Name: ast.NewIdent("pasted")}
	taken := map[ast.Decl]bool{}
	for more := true; more; {
		more = false
		for _, decl := range file.Decls {
			if taken[decl] || !declaresAny(decl, needed, info) {
				continue
			}
			taken[decl], more = true, true
			ast.Inspect(decl, func(n ast.Node) bool {
				if name, ok := n.(*ast.Ident); ok {
					switch used := info.Uses[name].(type) {
					case *types.PkgName:
						imported[used.Imported().Path()] = true
					case types.Object:
						needed[used] = needed[used] || used.Parent() == scope
					}
				}
				return true
			})
		}
	}
	for _, spec := range file.Imports {
		if imported[must(strconv.Unquote(spec.Path.Value))] {
			part.Decls = append(part.Decls, &ast.GenDecl{Tok: token.IMPORT,
				Specs: []ast.Spec{spec}})
		}
	}
	for _, decl := range file.Decls {
		if taken[decl] {
			part.Decls = append(part.Decls, decl)
		}
	}
	return part
}

// declaresAny reports whether a declaration declares one of the needed objects,
// or a method of one.
func declaresAny(decl ast.Decl, needed map[types.Object]bool, info *types.Info) (found bool) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			return needed[info.Defs[decl.Name]]
		}
		ast.Inspect(decl.Recv.List[0].Type, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			found = found || ok && needed[info.Uses[name]]
			return true
		})
	case *ast.GenDecl:
		if decl.Tok == token.IMPORT {
			return false
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			found = found || ok && needed[info.Defs[name]]
			return true
		})
	}
	return found
}

// TestPackTexts checks that an epoch without a row is an error, and that texts
// at the end of an epoch which do not fill a row are left out.
func TestPackTexts(t *testing.T) {
	rows := func(texts, length int) (n int, err error) {
		one := dataloader.Batch(dataloader.Indices(dataloader.Sequential(texts)), 1,
			dataloader.List[int])
		for _, err = range packTexts(one, length).Epoch(t.Context(), 5) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	_, err := rows(7, 8)
	equal(t, "7 tokens", fmt.Sprint(err), "all texts of epoch 5 do not fill a row")
	_, err = rows(0, 8)
	equal(t, "whether no texts are an error", err != nil, true)
	equal(t, "rows of 8 tokens", must(rows(8, 8)), 1)
	equal(t, "rows of 1007 tokens", must(rows(1007, 8)), 125)
	texts := dataloader.Batch(dataloader.Indices(dataloader.Sequential(16)), 1,
		dataloader.List[int])
	at := dataloader.Cursor{Epoch: 5}
	for range packTexts(texts, 8).Run(t.Context(), &at) {
		if at.Pos == 2 { // after the last row
			break
		}
	}
	for row, err := range packTexts(texts, 8).Run(t.Context(), &at) {
		t.Errorf("after the last row: %v, %v", row, err)
	}
}

// TestOrientation turns a picture of six pixels by each orientation, and gives
// damaged files to orientation, which has to say 1 or what stands there.
func TestOrientation(t *testing.T) {
	stored := map[int]string{ // what is stored of the picture "ab cd ef"
		1: "ab cd ef", 2: "ba dc fe", 3: "fe dc ba", 4: "ef cd ab",
		5: "ace bdf", 6: "bdf ace", 7: "fdb eca", 8: "eca fdb",
	}
	for how, text := range stored {
		rows := strings.Fields(text)
		img := image.NewGray(image.Rect(3, 4, 3+len(rows[0]), 4+len(rows)))
		copy(img.Pix, strings.Join(rows, ""))
		turned, got := upright(img, how), ""
		for y := range 3 {
			for x := range 2 {
				r, _, _, _ := turned.At(turned.Bounds().Min.X+x, turned.Bounds().Min.Y+y).RGBA()
				got += string(rune(r >> 8))
			}
		}
		equal(t, fmt.Sprint("orientation ", how), got, "abcdef")
	}
	for how := range 9 {
		file := withOrientation(image.NewGray(image.Rect(0, 0, 8, 8)), byte(how))
		equal(t, "what a file says", orientation(file), max(1, how))
		for n := range 60 {
			got := orientation(file[:n])
			failIf(t, got != 1 && got != how, "of %d bytes: %d", n, got)
			for _, b := range []byte{0, 1, 0x7f, 0xff} {
				damaged := slices.Clone(file)
				damaged[n] = b
				failIf(t, orientation(damaged) < 1 || orientation(damaged) > 8, "byte %d is %d", n,
					b)
			}
		}
	}
	little := []byte("II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x08\x00\x00\x00")
	equal(t, "in little-endian order", orientationOf(little), 8)
}

// TestCheckDataset checks that checkDataset names the sample that differs, and
// lets pass what only looks as if it did.
func TestCheckDataset(t *testing.T) {
	type record struct {
		label  int // not exported
		tags   map[string]*int
		weight float64
	}
	var fetched atomic.Int64
	pointer := func(v int64) *int64 { return &v }
	// differs for sample bad
	at := func(bad, i int) int64 { return map[bool]int64{true: fetched.Add(1)}[i == bad] }
	buffer := make([]int, 1)
	for want, get := range map[string]func(i int) (any, error){
		"nothing differs": func(i int) (any, error) {
			return record{i, map[string]*int{"a": &i, "b": new(int)}, math.NaN()},
				map[int]error{4: errBad}[i]
		},
		"sample 0 has changed … reuses memory": func(i int) (any, error) {
			buffer[0] = i
			return &buffer, nil
		},
		"sample 5 differs": func(i int) (any, error) { return record{label: int(at(5, i))}, nil },
		"sample 6 differs": func(i int) (any, error) {
			return map[int]*int64{1: pointer(at(6, i))}, nil
		},
		"sample 7 differs": func(i int) (any, error) { return []any{pointer(at(7, i))}, nil },
		"sample 8 differs": func(i int) (any, error) {
			return nil, fmt.Errorf("fetch %d", at(8, i))
		},
	} {
		t.Run(want, func(t *testing.T) {
			get := func(_ context.Context, i int) (any, error) { return get(i) }
			err := checkDataset(dataloader.Func(9, get))
			saysAll(t, cmp.Or(err, errors.New("nothing differs")), want)
		})
	}
	augmented := dataloader.Func(24, func(ctx context.Context, i int) (int, error) {
		return dataloader.Rand(ctx).Int() ^ dataloader.Rand(ctx).Int(), nil
	})
	equal(t, "random numbers", checkDataset(augmented), nil)
}

var errBad = errors.New("bad sample")

// numbers is the data set 0, 1, …, n-1.
func numbers(n int) dataloader.Dataset[int] { return &probe{n: n} }

// failing is numbers(n), except that the bad ones fail with errBad.
func failing(n int, bad ...int) dataloader.Dataset[int] { return &probe{n: n, bad: bad} }

// A probe is the data set 0, 1, …, n-1 under observation.
type probe struct {
	n     int
	bad   []int                     // the samples that fail, with errBad
	takes func(i int) time.Duration // how long Get takes for sample i; nil means no time
	deaf  bool                      // Get does not look at its context meanwhile

	begun, running atomic.Int64 // the calls of Get so far, and those that have not returned
}

func (p *probe) Len() int { return p.n }

func (p *probe) Get(ctx context.Context, i int) (int, error) {
	p.begun.Add(1)
	p.running.Add(1)
	defer p.running.Add(-1)
	if p.takes != nil {
		if p.deaf {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-time.After(p.takes(i)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if slices.Contains(p.bad, i) {
		return 0, errBad
	}
	return i, nil
}

// equal fails the test if got is not want.
func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// failIf fails the test if something is wrong.
func failIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Fatalf(format, args...)
	}
}

// must returns v of a call that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// saysAll checks that err is there and says each of the parts, between which
// stands " … ".
func saysAll(t testing.TB, err error, says string) {
	t.Helper()
	for _, part := range strings.Split(says, " … ") {
		failIf(t, err == nil || !strings.Contains(err.Error(), part), "error %v does not say %q",
			err, part)
	}
}
