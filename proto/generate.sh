#!/bin/sh
# Regenerates the Go code of every .proto file below this directory.
# Needs protoc (Debian: protobuf-compiler); the plugins are pinned in tools/go.mod.
set -eu
cd "$(dirname "$0")"
command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler" >&2; exit 1; }

plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go \
	google.golang.org/grpc/cmd/protoc-gen-go-grpc \
	github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc; do
	GOWORK=off go build -modfile=../tools/go.mod -o "$plugins/" "$plugin"
done

# A proto package is served over ttrpc if nothing else is said here.
find . -name '*.proto' | LC_ALL=C sort | while read -r file; do
	case $file in
	./berth/admin/*) served=go-grpc ;; # operators' tools speak gRPC
	*) served=go-ttrpc ;;
	esac
	PATH="$plugins:$PATH" protoc -I . \
		--go_out=. --go_opt=paths=source_relative \
		"--${served}_out=." "--${served}_opt=paths=source_relative" \
		"$file"
done

# Without this the code would name the protoc it was made with, and change
# with the machine. All that differs between releases is that line.
find . -name '*.pb.go' -exec sed -i '/^\/\/ \t\?protoc  *v/d; /^\/\/ - protoc  *v/d' {} +
gofmt -w .
