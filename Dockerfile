# Tollgate as one static program: `docker build -t tollgate .`
#
# The first stage compiles, the last holds the program, the certificates that
# TLS to Redis, Kafka and PostgreSQL is checked against, and a probe for health
# checks. Time zones are compiled in, since bills follow them. It runs as a user
# without a name or rights, and writes nothing outside its volumes.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags timetzdata \
    -ldflags "-s -w -X tollgate/internal/cli.version=${VERSION}" \
    -o /out/tollgate ./cmd/tollgate

# A static wget, for health checks: the image has no shell.
FROM busybox:1.37-musl AS probe

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=probe /bin/busybox /bin/wget
COPY --from=build /out/tollgate /bin/tollgate
USER 65532:65532
# The API, and health, readiness and metrics.
EXPOSE 8080 9090
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s \
    CMD ["/bin/wget", "-q", "-O", "/dev/null", "http://127.0.0.1:9090/healthz"]
ENTRYPOINT ["/bin/tollgate"]
CMD ["--help"]
