package recipes

// Rows: JSON lines, CSV, row groups, databases.
//
//	Example_jsonLines      a file larger than memory, shuffled
//	Example_jsonLinesGzip  compressed files
//	Example_csv            a file larger than memory, shuffled
//	Example_rowGroups      Parquet, Arrow, HDF5: units of many rows
//	Example_database       one query for each batch, while rows come and go
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/fstest"
	"unicode/utf8"

	"dataloader"
)

// A line is a sample: the fields that each line must have, and no others.
type line struct {
	Text *string `json:"text"` // a pointer, since a missing string would be ""
}

// decodeLine decodes a line. A misspelled key, a missing field, a text that is
// not UTF-8 and what stands behind the sample are errors: encoding/json alone
// would leave fields empty, and replace bytes. A key may be in capitals, and of
// two equal keys the last one counts. With Go 1.27, or GOEXPERIMENT=jsonv2
// before, it takes 0.6 of the time.
func decodeLine(data []byte) (l line, err error) {
	if !utf8.Valid(data) {
		return l, errors.New("the line is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, err
	}
	if _, err := d.Token(); err != io.EOF {
		return l, errors.New("more than one sample in a line")
	}
	if l.Text == nil {
		return l, errors.New(`no field "text"`)
	}
	return l, nil
}

// jsonLines reads a file once, to note where each line begins, in 8 bytes a
// line, and Get reads its line. Lines may have any length, the last one need
// not end, blank lines count as part of the line before, and a byte order mark
// in front is skipped. The file stays open.
func jsonLines(file *os.File) (dataloader.Dataset[line], error) {
	var offsets []int64 // line i is the bytes from offsets[i] up to offsets[i+1]
	r := bufio.NewReaderSize(file, 1<<20)
	end, err := skipMark(r)
	for err == nil {
		var data []byte
		data, err = r.ReadBytes('\n') // at the end of the file, with io.EOF, the rest of it
		if len(bytes.TrimSpace(data)) > 0 {
			offsets = append(offsets, end)
		}
		end += int64(len(data))
	}
	if err != io.EOF {
		return nil, err
	}
	n := len(offsets)
	offsets = append(offsets, end)
	return dataloader.Func(n, func(_ context.Context, i int) (line, error) {
		data := make([]byte, offsets[i+1]-offsets[i])
		if _, err := file.ReadAt(data, offsets[i]); err != nil {
			return line{}, err
		}
		l, err := decodeLine(data)
		if err != nil {
			return l, fmt.Errorf("%s at byte %d: %w", filepath.Base(file.Name()), offsets[i], err)
		}
		return l, nil
	}), nil
}

// skipMark skips a byte order mark, which Windows programs write, and returns
// its length.
func skipMark(r *bufio.Reader) (int64, error) {
	const mark = "\ufeff"
	if begins, _ := r.Peek(len(mark)); string(begins) != mark {
		return 0, nil // the next read returns what Peek has met
	}
	n, err := r.Discard(len(mark))
	return int64(n), err
}

// A file of JSON lines that is larger than memory is shuffled over the whole
// epoch. A shuffle within a window would need no pass over the file before, but
// a file that is sorted would stay nearly sorted. For CSV, where a line break
// may stand between quotes, see Example_csv.
func Example_jsonLines() {
	text := "\ufeff" + `{"text": "a"}` + "\n" +
		`{"text": "be"}` + "\r\n\n" +
		`{"text": "cat"}` + "\n" +
		`{"test": "misspelled"}` + "\n" +
		`{"text": "extra"}`
	file := openText("train.jsonl", text)
	defer file.Close()
	data, err := jsonLines(file)
	if err != nil {
		log.Fatal(err)
	}
	opts := dataloader.Options{BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2}
	opts.OnError = func(bad *dataloader.SampleError) error {
		// What follows the place is encoding/json's, and differs between
		// versions of Go.
		place, _, _ := strings.Cut(bad.Err.Error(), ": ")
		fmt.Println("dropped", place)
		return nil
	}
	loader, err := dataloader.New(data, dataloader.List[line], opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		var texts []string
		for _, l := range batch {
			texts = append(texts, *l.Text)
		}
		fmt.Println(texts)
	}
	// Output:
	// [cat be]
	// dropped train.jsonl at byte 50
	// [extra]
	// [a]
}

// gzipLines is the stream of the lines of a compressed file. A resume
// decompresses the file again, up to its place. The rest of a truncated file is
// one failed item, which costs more than a line if the loop skips it. For .zst
// import github.com/klauspost/compress/zstd, whose NewReader replaces that of
// gzip, and defer the Close of what it returns.
func gzipLines(fsys fs.FS, name string) dataloader.Stream[[]byte] {
	return dataloader.FromSeq(func(context.Context, int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			fail := func(err error) { yield(nil, fmt.Errorf("%s: %w", name, err)) }
			file, err := fsys.Open(name)
			if err != nil {
				fail(err)
				return
			}
			defer file.Close()
			unzipped, err := gzip.NewReader(bufio.NewReaderSize(file, 1<<20))
			if err != nil {
				fail(err)
				return
			}
			r := bufio.NewReaderSize(unzipped, 1<<16)
			for _, err = skipMark(r); err == nil; {
				var data []byte
				data, err = r.ReadBytes('\n') // at the end, with io.EOF, the rest of the file
				if err != nil && err != io.EOF {
					break
				}
				if len(bytes.TrimSpace(data)) > 0 && !yield(data, nil) {
					return
				}
			}
			if err != io.EOF {
				fail(err)
			}
		}
	})
}

// Compressed JSON lines, as in .jsonl.gz, in many files: up to 64 are read side
// by side, and their lines are shuffled. Shuffle mixes only what is near, so
// let it have ten times the lines of a file, or shuffle what you write. What
// fits on the disk decompressed is mixed better by Example_jsonLines.
func Example_jsonLinesGzip() {
	whole := gzipped(`{"text": "d"}` + "\n" + `{"text": "e"}` + "\n")
	store := fstest.MapFS{ // or os.DirFS
		"0.jsonl.gz": {Data: gzipped(`{"text": "a"}` + "\n" + `{"text": "b"}` + "\n\n" +
			`{"text": "c"}`)},
		"1.jsonl.gz": {Data: whole},
		"2.jsonl.gz": {Data: whole[:len(whole)-9]}, // truncated
	}
	names, err := fs.Glob(store, "*.jsonl.gz")
	if err != nil {
		log.Fatal(err)
	}
	var files []dataloader.Stream[[]byte]
	for _, name := range names {
		files = append(files, gzipLines(store, name))
	}
	shuffled := dataloader.Mix(dataloader.MixOptions{}, files...).Shuffle(10_000, 1)
	samples := dataloader.Map(shuffled, 2, func(_ context.Context, data []byte) (line, error) {
		return decodeLine(data)
	})
	for l, err := range samples.Epoch(context.Background(), 0) {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			fmt.Print("(the rest of 2.jsonl.gz) ")
		} else if err != nil {
			log.Fatal(err)
		} else {
			fmt.Print(*l.Text, " ")
		}
	}
	// Output: (the rest of 2.jsonl.gz) e b e d c d a
}

// A row of a table: its numbers, and its class.
type row = dataloader.Pair[dataloader.Tensor[float32], string]

// csvRows reads a CSV file once: csv.Reader says where each record begins,
// since line breaks may stand between quotes, and Get parses its record. Get
// takes a bufio.Reader from a pool, because csv.NewReader would allocate one of
// 4 KB for each record. The columns are found by their names. A missing one,
// and a record with too few or too many fields, are errors here. The file stays
// open.
func csvRows(file *os.File, class string, numbers ...string) (dataloader.Dataset[row], error) {
	r := bufio.NewReaderSize(file, 1<<20)
	begin, err := skipMark(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	records := csv.NewReader(r)
	header, err := records.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: the header: %w", file.Name(), err)
	}
	columns := make([]int, 0, 1+len(numbers))
	for _, name := range append([]string{class}, numbers...) {
		column := slices.Index(header, name)
		if column < 0 {
			return nil, fmt.Errorf("%s has no column %q, but %q", file.Name(), name, header)
		}
		columns = append(columns, column)
	}
	// Record i is the bytes from offsets[i] up to offsets[i+1].
	offsets := []int64{begin + records.InputOffset()}
	for records.ReuseRecord = true; err == nil; {
		if _, err = records.Read(); err == nil {
			offsets = append(offsets, begin+records.InputOffset())
		}
	}
	if err != io.EOF {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	buffers := sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	return dataloader.Func(len(offsets)-1, func(_ context.Context, i int) (r row, err error) {
		buffer := buffers.Get().(*bufio.Reader)
		defer buffers.Put(buffer)
		buffer.Reset(io.NewSectionReader(file, offsets[i], offsets[i+1]-offsets[i]))
		fields, err := csv.NewReader(buffer).Read()
		if err != nil {
			return r, fmt.Errorf("%s, record %d: %w", file.Name(), i, err)
		}
		for k, c := range columns[1:] {
			v, err := strconv.ParseFloat(fields[c], 32)
			if err != nil {
				return r, fmt.Errorf("%s, record %d, %s: %w", file.Name(), i, numbers[k], err)
			}
			r.First.Data = append(r.First.Data, float32(v))
		}
		r.First.Shape = []int{len(numbers)}
		r.Second = fields[columns[0]]
		return r, nil
	}), nil
}

// A CSV file that is larger than memory, shuffled over the whole epoch. Several
// files are data sets for Concat. For a file that fits into memory, set
// ReuseRecord, append the numbers of all records to one []float32, and make
// Rows of it: a Slice of what ReadAll returns takes 1.2 to 2.5 times as long.
// Clone the strings that stay, because each keeps its record in memory.
func Example_csv() {
	file := openText("train.csv", "\ufeff\"class\",note,length,width\n"+
		"cat,purrs,46,25\n"+
		"\"dog\",\"barks,\nat night\",85,30\n\n"+
		"cow,,240,70\n")
	defer file.Close()
	data, err := csvRows(file, "class", "width", "length")
	if err != nil {
		log.Fatal(err)
	}
	collate := dataloader.CollatePair(dataloader.Stack[float32], dataloader.List[string])
	opts := dataloader.Options{BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2}
	loader, err := dataloader.New(data, collate, opts)
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second)
	}
	// Output:
	// [2 2] [30 85 25 46] [dog cat]
	// [1 2] [70 240] [cow]
}

// Units of many rows, such as the row groups of Parquet files, the record
// batches of Arrow files or the chunks of HDF5 files: a unit is read whole, and
// its rows become items. Workers × Prefetch + 1 units are in memory at once,
// here 3. With Map(…, 2, …) in place of NewBatchFunc there are 17; with Map(…,
// 0, …).Prefetch(1), which reads one unit at a time, 2. The rows in Shuffle
// come on top: copy rows that share their unit's memory, because one such row
// keeps the whole unit. A resume reads the units of these rows again. It
// compares only how many rows they have, so change DataVersion with the rows.
// All ranks read all units, and Shard deals out the rows. If one rank missed a
// unit, it would go on with rows of the other ranks, and nobody would notice.
// Therefore OnError ends the loop before Unbatch counts a failed unit, and the
// next process tries the unit again. For a unit that is damaged on all ranks,
// let load return no rows.
func Example_rowGroups() {
	// Each stands for a part of a file.
	units := []string{"a1\na2\na3\na4\n", "b1\nb2\n", "c1\nc2\nc3\n"}
	load := func(_ context.Context, _ [][]string, indices []int) ([][]string, error) {
		unit := strings.NewReader(units[indices[0]])
		return csv.NewReader(unit).ReadAll() // your reader, whose errors name the unit
	}
	loader, err := dataloader.NewBatchFunc(len(units), load, dataloader.Options{
		Shuffle: true, Seed: 1, Workers: 2, Prefetch: 1, DataVersion: "v1",
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	loaded := dataloader.StreamOf(loader).OnError(func(bad *dataloader.SampleError) error {
		stop(bad)
		return bad
	})
	rows := dataloader.Unbatch(loaded).Shuffle(4, 1)

	var at dataloader.Cursor
	// Rank 1 of 2 resumes after a step of one rank.
	for _, rank := range []dataloader.Rank{{Count: 1}, {Index: 1, Count: 2}} {
		batches := dataloader.Batch(rows.Shard(rank, dataloader.DropTail), 3,
			dataloader.List[[]string])
		for batch, err := range batches.Run(ctx, &at) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(rank, batch)
			break
		}
	}
	// Output:
	// {0 1} [[b1] [a2] [a3]]
	// {1 2} [[c2] [b2] [c1]]
}

// savedIDs returns the ids of an epoch: those of the file, or, for the first
// process of the epoch, those of the table, which it saves. A killed process or
// a loss of power leaves no half of a list.
func savedIDs(ctx context.Context, db *sql.DB, name string) (ids []int64, err error) {
	saved, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(saved, &ids)
		return ids, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT id FROM texts ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil { // Next also returns false if the connection breaks
		return nil, err
	}
	if saved, err = json.Marshal(ids); err != nil {
		return nil, err
	}
	file, err := os.Create(name + ".new")
	if err != nil {
		return nil, err
	}
	_, err = file.Write(saved)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, err
	}
	return ids, os.Rename(name+".new", name)
}

// textsOf returns the texts of the rows that still exist. The result of a query
// is in any order, and has a row once that was asked for twice. Postgres has
// $1, $2, … for the question marks, or id = ANY($1).
func textsOf(ctx context.Context, db *sql.DB, ids []any) (map[int64]string, error) {
	marks := "?" + strings.Repeat(", ?", len(ids)-1)
	query := "SELECT id, text FROM texts WHERE id IN (" + marks + ")"
	rows, err := db.QueryContext(ctx, query, ids...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[int64]string{}
	for rows.Next() {
		var id int64
		var text string
		if err := rows.Scan(&id, &text); err != nil {
			return nil, err
		}
		found[id] = text
	}
	return found, rows.Err()
}

// openTexts returns the loader of an epoch. missing counts the rows that loads
// did not find. A batch that is loaded again, after a break, is counted again.
func openTexts(
	db *sql.DB, ids []int64, missing *atomic.Int64,
) (*dataloader.DataLoader[[]string], error) {
	load := func(ctx context.Context, batch []string, indices []int) ([]string, error) {
		var wanted []any
		for _, i := range indices {
			wanted = append(wanted, ids[i])
		}
		found, err := textsOf(ctx, db, wanted)
		if err != nil {
			return nil, err
		}
		batch = batch[:0]
		for _, i := range indices {
			if text, ok := found[ids[i]]; ok {
				batch = append(batch, text)
			} else {
				missing.Add(1)
			}
		}
		return batch, nil
	}
	return dataloader.NewBatchFunc(len(ids), load, dataloader.Options{
		BatchSize: 2, Shuffle: true, Seed: 1, Workers: 2,
		DataVersion: fmt.Sprintf("ids #%x", crc32.ChecksumIEEE(fmt.Append(nil, ids))),
	})
}

// A table of a database, with one query for each batch, while other programs
// insert and delete rows. An index is a place in the list of the ids, so the
// list of an epoch is part of the checkpoint: a file, since it may be long. The
// first process of an epoch writes the file, and a resume reads it. New rows
// come in the next epoch. A deleted row is left out of its batch, which may
// become empty, and counted. Without the file each row more or less would be
// another list, and the resume refused. If rows are never deleted, save the
// largest id instead, and add WHERE id <= ? to the query. On several ranks rank
// 0 makes the file before the others look for it.
func Example_database() {
	ctx := context.Background()
	table := tinyDB{10: "purr", 12: "moo", 15: "woof", 17: "meow"}
	db := sql.OpenDB(table) // or sql.Open, with a driver and an address
	defer db.Close()
	dir, err := os.MkdirTemp("", "run") // where the checkpoints are
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	var missing atomic.Int64
	train := func(at dataloader.Cursor, steps int) dataloader.Cursor { // one process
		for at.Epoch < 2 {
			ids, err := savedIDs(ctx, db, filepath.Join(dir, fmt.Sprintf("ids-%d.json", at.Epoch)))
			if err != nil {
				log.Fatal(err)
			}
			loader, err := openTexts(db, ids, &missing)
			if err != nil {
				log.Fatal(err)
			}
			for batch, err := range loader.Run(ctx, &at) {
				if err != nil {
					log.Fatal(err)
				}
				fmt.Println("epoch", at.Epoch, batch)
				if steps--; steps == 0 {
					return at
				}
			}
		}
		return at
	}
	at := train(dataloader.Cursor{}, 1)
	delete(table, 10) // by other programs
	table[20] = "baa"
	train(at, -1)
	fmt.Println(missing.Load(), "rows missing")
	// Output:
	// epoch 0 [meow woof]
	// epoch 0 [moo]
	// epoch 1 [moo woof]
	// epoch 1 [meow baa]
	// 1 rows missing
}

// # Fixtures, which the Examples need, and a program does not

// openText writes a file, opens it, and removes its name. On Windows, where an
// open file cannot be removed, it is left in the folder for temporary files.
func openText(name, text string) *os.File {
	dir, err := os.MkdirTemp("", "recipe")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		log.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		log.Fatal(err)
	}
	return file
}

// gzipped compresses a text.
func gzipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		log.Fatal(err)
	}
	return b.Bytes()
}

// tinyDB stands for the database of Example_database, with what database/sql
// needs of a driver: a table of texts.
type tinyDB map[int64]string

func (db tinyDB) Connect(context.Context) (driver.Conn, error) { return db, nil }

func (db tinyDB) Driver() driver.Driver { return nil }

func (db tinyDB) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

func (db tinyDB) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

func (db tinyDB) Close() error { return nil }

// QueryContext returns the rows with the ids in args, or all ids.
func (db tinyDB) QueryContext(
	_ context.Context, _ string, args []driver.NamedValue,
) (driver.Rows, error) {
	rows := &tinyRows{columns: min(2, 1+len(args))}
	for _, id := range slices.Sorted(maps.Keys(db)) {
		asked := func(a driver.NamedValue) bool { return a.Value == id }
		if len(args) == 0 || slices.ContainsFunc(args, asked) {
			rows.rows = append(rows.rows, []driver.Value{id, db[id]})
		}
	}
	return rows, nil
}

// tinyRows are rows of tinyDB.
type tinyRows struct {
	columns int
	rows    [][]driver.Value
}

func (r *tinyRows) Columns() []string { return make([]string, r.columns) }

func (r *tinyRows) Close() error { return nil }

func (r *tinyRows) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}
