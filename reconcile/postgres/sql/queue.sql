-- Writes decided settlements before admission is asked. An estimate that waits
-- follows what has been reported or metered since; an exact figure stays, and
-- so does a row that was applied.
INSERT INTO automatic_settlements AS q (
    reservation_id, tenant_id, action, input_tokens, output_tokens, cached_input_tokens,
    reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, estimated, reason, queued_at)
SELECT u.*, $14::timestamptz
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
            $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
            $12::boolean[], $13::text[]) AS u
ON CONFLICT (reservation_id) DO UPDATE SET
    action = excluded.action,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
    cached_input_tokens = excluded.cached_input_tokens, reasoning_tokens = excluded.reasoning_tokens,
    tool_calls = excluded.tool_calls, images = excluded.images, audio_ms = excluded.audio_ms,
    gpu_ms = excluded.gpu_ms, estimated = excluded.estimated, reason = excluded.reason
WHERE q.applied_at IS NULL AND q.estimated
  AND (q.action, q.input_tokens, q.output_tokens, q.cached_input_tokens, q.reasoning_tokens, q.tool_calls,
       q.images, q.audio_ms, q.gpu_ms, q.estimated)
   IS DISTINCT FROM
      (excluded.action, excluded.input_tokens, excluded.output_tokens, excluded.cached_input_tokens,
       excluded.reasoning_tokens, excluded.tool_calls, excluded.images, excluded.audio_ms, excluded.gpu_ms, excluded.estimated)
