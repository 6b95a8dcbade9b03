-- A page of a tenant's settlements that wait, unless the tenant is frozen.
SELECT q.reservation_id, q.action, q.input_tokens, q.output_tokens, q.cached_input_tokens,
       q.reasoning_tokens, q.tool_calls, q.images, q.audio_ms, q.gpu_ms,
       q.estimated, q.reason, q.queued_at
FROM automatic_settlements q
WHERE q.tenant_id = $1 AND q.applied_at IS NULL
  AND q.next_attempt_at <= $5
  AND (q.queued_at, q.reservation_id) > ($2, $3)
  AND NOT EXISTS (SELECT FROM settlement_freezes f WHERE f.tenant_id = q.tenant_id AND f.unfrozen_at IS NULL)
ORDER BY q.queued_at, q.reservation_id
LIMIT $4
