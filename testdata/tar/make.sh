#!/bin/sh
# Writes the archives of this folder, next to this script. They were made with
# GNU tar 1.34, gzip, bzip2, xz and zstd; another version may give other bytes.
#
# Running it again gives the same bytes, except for three archives, which say
# why below: posix-sparse-0.1.tar, posix-sparse-1.0.tar and dumpdir.tar.
set -eu

unset TAR_OPTIONS POSIXLY_CORRECT GZIP BZIP BZIP2 XZ_OPT XZ_DEFAULTS \
	ZSTD_CLEVEL ZSTD_NBTHREADS
LC_ALL=C.UTF-8
export LC_ALL
umask 022

out=$(cd "$(dirname "$0")" && pwd)
in=$(mktemp -d)
trap 'rm -rf "$in"' EXIT
trap 'exit 1' HUP INT TERM

# pack ARCHIVE ARGUMENT... writes one archive: no dates, no owners, and with
# blocks of 512 bytes (-b1) nothing after the two zero blocks at the end.
pack() {
	archive=$1
	shift
	tar -c -b1 -f "$out/$archive" --mtime=@0 --owner=0 --group=0 \
		--numeric-owner --sort=name --no-recursion "$@"
}

# For the posix format: extended headers without a process id in their name
# and without the times of the input files.
plain='exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime'

# ---- The inputs

cd "$in"

# The base tree, three records: a, b (whose text takes two blocks) and c (whose
# text is empty).
printf 1 >a.cls
printf 'first\n' >a.txt
printf 2 >b.cls
i=0
while [ $i -lt 100 ]; do
	printf 'second\n'
	i=$((i + 1))
done >b.txt
printf 3 >c.cls
: >c.txt

# A record with a path of 167 bytes, between b and c, and one of 321 bytes.
chain=
for n in 1 2 3 4 5 6 7; do
	chain=${chain}bb-folder-number-000$n/
done
long=${chain}long-name
longer=$chain${chain}long-name
mkdir -p "$chain$chain"
printf 4 >"$long.cls"
printf 'long\n' >"$long.txt"
printf 5 >"$longer.cls"
printf 'longer\n' >"$longer.txt"

# A record with a path outside ASCII.
mkdir größe
printf 6 >größe/日本.cls
printf 'größe\n' >größe/日本.txt

# The same key.ext names, but not all of them are regular files.
mkdir links links/d
cp a.cls a.txt b.cls c.cls links
ln links/a.txt links/b.txt
ln -s a.txt links/c.txt
mkfifo links/d/pipe.txt
printf 7 >links/d/x.cls
printf 'x\n' >links/d/x.txt

# Files with holes. s.bin: 100,000 bytes, two pieces of data, the first across
# a block boundary, a hole at the end. u.bin: 30 pieces, data at the end.
# poke FILE OFFSET writes standard input into the file at that offset.
poke() {
	dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
mkdir sparse
cp a.cls a.txt sparse
printf 8 >sparse/s.cls
truncate -s 100000 sparse/s.bin
printf 'one piece' | poke sparse/s.bin 5115
printf 'another piece' | poke sparse/s.bin 70000
printf 9 >sparse/t.cls
printf 'after the holes\n' >sparse/t.txt
printf 10 >sparse/u.cls
i=1
while [ $i -le 30 ]; do
	printf 'piece %02d' $i | poke sparse/u.bin $((i * 10000))
	i=$((i + 1))
done

# A folder for the incremental archive.
mkdir dump
cp a.cls a.txt b.cls b.txt c.cls c.txt dump

# ---- The base tree in each format

set -- a.cls a.txt b.cls b.txt c.cls c.txt

# The oldest format: no magic in the header.
pack v7.tar --format=v7 "$@"

# GNU formats: magic "ustar  \0". For these files the two are the same bytes.
pack oldgnu.tar --format=oldgnu "$@"
pack gnu.tar --format=gnu "$@"

# POSIX 1988: magic "ustar\0", version "00".
pack ustar.tar --format=ustar "$@"

# POSIX 2001: ustar with an extended header (type x) before each file, here
# with fixed access and change times (tar writes the file's own by default).
pack posix.tar --format=posix --pax-option='exthdr.name=%d/PaxHeaders/%f' \
	--pax-option='atime:=1.5,ctime:=2.25' "$@"

# As posix.tar, after a global header (type g) with a comment that is for the
# whole archive; the files have no extended headers of their own.
pack posix-global.tar --format=posix --pax-option="$plain" \
	--pax-option='globexthdr.name=GlobalHead.%n,globexthdr.mtime=0' \
	--pax-option='comment=hello' "$@"

# ---- Long paths and paths outside ASCII

# The path comes in an entry of its own (type L), before the file's.
set -- a.cls a.txt b.cls b.txt "$long.cls" "$long.txt" c.cls c.txt
pack gnu-long.tar --format=gnu "$@"
pack oldgnu-long.tar --format=oldgnu "$@"

# The path is split at a slash over the fields prefix and name.
pack ustar-prefix.tar --format=ustar "$@"

# The path is too long for that, and comes in an extended header.
set -- a.cls a.txt b.cls b.txt "$longer.cls" "$longer.txt" c.cls c.txt
pack posix-long.tar --format=posix --pax-option="$plain" "$@"

# The path is UTF-8 in the header itself.
set -- a.cls a.txt größe/日本.cls größe/日本.txt
pack gnu-utf8.tar --format=gnu "$@"

# The path is UTF-8 in an extended header (and in the header as well).
pack posix-utf8.tar --format=posix --pax-option="$plain" "$@"

# ---- Entries that are not regular files

# b.txt is a hard link to a.txt (type 1), c.txt a symbolic link to it (2),
# d/ a folder (5), d/pipe.txt a fifo (6).
set -- -C links a.cls a.txt b.cls b.txt c.cls c.txt d d/pipe.txt d/x.cls d/x.txt
pack gnu-links.tar --format=gnu "$@"
pack posix-links.tar --format=posix --pax-option="$plain" "$@"

# ---- Files with holes

# The holes are found by looking for zeros, so that they do not depend on the
# file system.
set -- --sparse --hole-detection=raw -C sparse \
	a.cls a.txt s.bin s.cls t.cls t.txt u.bin u.cls

# Type S. The header has room for four pieces; those of u.bin go on in two
# more blocks after it.
pack gnu-sparse.tar --format=gnu "$@"

# 0.0: the pieces are repeated GNU.sparse.offset and GNU.sparse.numbytes
# records of the extended header.
pack posix-sparse-0.0.tar --format=posix --sparse-version=0.0 \
	--pax-option="$plain" "$@"

# 0.1: the pieces are one GNU.sparse.map record, the path is in
# GNU.sparse.name. NOT the same bytes each time: the header has the path
# ./GNUSparseFile.PID/s.bin, and tar has no option to leave the process id out.
pack posix-sparse-0.1.tar --format=posix --sparse-version=0.1 \
	--pax-option="$plain" "$@"

# 1.0: the pieces are listed at the start of the file's data, the path is in
# GNU.sparse.name. NOT the same bytes each time, for the same reason as 0.1.
pack posix-sparse-1.0.tar --format=posix --sparse-version=1.0 \
	--pax-option="$plain" "$@"

# ---- An incremental archive

# The folder is an entry of type D, whose data list its files. NOT the same
# bytes each time: every header has the access and change times of the file
# (in the place where ustar has the prefix), and no option leaves them out.
pack dumpdir.tar --format=gnu --listed-incremental="$in/snapshot" \
	--recursion dump

# ---- Compressed archives, without the usual suffix on purpose

gzip -n9 <"$out/gnu.tar" >"$out/gzip.tar"
bzip2 -9 <"$out/gnu.tar" >"$out/bzip2.tar"
xz -9 -T1 <"$out/gnu.tar" >"$out/xz.tar"
zstd -q -19 -T1 <"$out/gnu.tar" >"$out/zstd.tar"

# Two gzip members, one after the other; the first ends inside b.txt.
{
	head -c 3700 "$out/gnu.tar" | gzip -n9
	tail -c +3701 "$out/gnu.tar" | gzip -n9
} >"$out/members.tar"
