# Tollgate's commands. `make` lists them.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help build demo test lint vuln fmt verify generate bench bench-peers chaos fuzz services-up services-down docker clean

version := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/tollgate
	go build -trimpath -ldflags "-X tollgate/internal/cli.version=$(version)" -o bin/tollgate ./cmd/tollgate

demo: ## drive a real trace through every part and print one table of totals
	deploy/services install postgres redis
	$(MAKE) --no-print-directory build
	bin/tollgate dev --demo

test: ## everything a change must pass: tests with -race on real services, lint, vulnerabilities
	deploy/check

lint: ## golangci-lint alone
	deploy/check lint

vuln: ## govulncheck alone
	deploy/check vuln

fmt: ## format the code
	go run mvdan.cc/gofumpt@v0.12.0 -w $$(git ls-files --cached --others --exclude-standard -- '*.go')

generate: ## write the generated files anew
	go generate ./...

verify: generate ## fail when a generated file, go.mod or a module's checksum is not current
	git diff --exit-code
	go mod tidy -diff
	go mod verify

bench: build ## measure every part on real services (ARGS=--json)
	deploy/with-services --settings bin/tollgate bench $(ARGS)

bench-peers: build ## the gateway beside Envoy's ratelimit, LiteLLM and others (ARGS='-only proxy -json')
	deploy/peers/install bin/peers
	go -C deploy/peers build -o ../../bin/envoy-ratelimit github.com/envoyproxy/ratelimit/src/service_cmd
	go build -o bin/benchpeers ./internal/benchpeers
	deploy/with-services --settings bin/benchpeers $(ARGS)

chaos: build ## a full trace, and streams through the front door, while every process is killed in turn; prints its seed (ARGS='--seed 7')
	TOLLGATE_SERVICES_REDIS_FSYNC=always deploy/with-services --settings bin/tollgate chaos $(ARGS)

fuzz: ## every fuzz target for ten seconds
	deploy/fuzz 10s

services-up: ## start PostgreSQL, Redis, Redis Cluster and Kafka on loopback
	deploy/services up
	@deploy/services status
	@echo 'for tests:    eval "$$(deploy/services env)"'
	@echo 'for Tollgate: eval "$$(deploy/services env settings)"'

services-down: ## stop them and delete their data
	deploy/services down

docker: ## build the container image
	docker build --build-arg VERSION=$(version) -t tollgate:$(version) .

clean: ## remove what was built
	rm -rf bin
