package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"tollgate/reconcile"
)

// Bounds of one question to the execution status service.
const (
	executionTimeout = 2 * time.Second
	executionMaxBody = 4 << 10
)

// executionClient asks a scheduler's HTTP endpoint whether the work of a
// request still runs. It implements reconcile.ExecutionStatus: GET with the
// query parameters tenant_id and request_id beside those of the configured
// URL, answered with 200 and {"status":"running"}, "ended" or "unknown". Every
// other answer is an error, which the reconciler takes for unknown: a service
// that is confused must not end anybody's hold.
type executionClient struct {
	base   *url.URL
	client *http.Client
}

var _ reconcile.ExecutionStatus = (*executionClient)(nil)

func newExecutionClient(address string) (*executionClient, error) {
	base, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("reconcile.execution_status_url: %w", err)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: executionTimeout, MaxResponseHeaderBytes: 16 << 10, ForceAttemptHTTP2: true,
	}
	return &executionClient{base, &http.Client{
		Transport: transport, Timeout: executionTimeout,
		// A redirect is not an answer; following it would ask a host that
		// nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Status implements reconcile.ExecutionStatus.
func (c *executionClient) Status(ctx context.Context, tenantID, requestID string) (reconcile.Execution, error) {
	target := *c.base
	query := target.Query()
	query.Set("tenant_id", tenantID)
	query.Set("request_id", requestID)
	target.RawQuery, target.Fragment = query.Encode(), ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return reconcile.ExecutionUnknown, fmt.Errorf("ask for the execution status: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return reconcile.ExecutionUnknown, fmt.Errorf("ask for the execution status: %w", withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return reconcile.ExecutionUnknown, fmt.Errorf("execution status service answered %d, want 200", res.StatusCode)
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return reconcile.ExecutionUnknown, errors.New("execution status service did not answer with application/json")
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, executionMaxBody+1))
	if err != nil {
		return reconcile.ExecutionUnknown, fmt.Errorf("read the execution status: %w", withoutURL(err))
	}
	if len(data) > executionMaxBody {
		return reconcile.ExecutionUnknown, fmt.Errorf("execution status is longer than %d bytes", executionMaxBody)
	}
	var answer struct {
		Status reconcile.Execution `json:"status"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return reconcile.ExecutionUnknown, fmt.Errorf("execution status is no JSON object with a status: %w", err)
	}
	switch answer.Status {
	case reconcile.ExecutionRunning, reconcile.ExecutionEnded, reconcile.ExecutionUnknown:
		return answer.Status, nil
	}
	return reconcile.ExecutionUnknown, fmt.Errorf("execution status %.40q is none of running, ended, unknown", answer.Status)
}

// withoutURL takes the URL out of a client's error: its query may hold a token.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

func (c *executionClient) close() { c.client.CloseIdleConnections() }
