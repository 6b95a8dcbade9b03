-- Reservations that are not the fold of the journal's events. $1 bounds how
-- many are named.
SELECT reservation_id, j.figures, r.figures
FROM (
    SELECT reservation_id, ARRAY[h.tenant_id, h.request_id, h.key_id, h.endpoint, h.model, h.state,
        h.head_event_id, h.seq::text, h.weight_milli::text, h.held_milli_units::text, h.total_milli_units::text,
        h.estimated::text, h.expires_at::text,
        s.events::text, s.first_event_at::text, s.last_event_at::text,
        s.input_tokens::text, s.output_tokens::text, s.cached_input_tokens::text, s.reasoning_tokens::text,
        s.tool_calls::text, s.images::text, s.audio_ms::text, s.gpu_ms::text, s.milli_units::text] AS figures
    FROM (
        SELECT DISTINCT ON (reservation_id) reservation_id, tenant_id, request_id, key_id, endpoint, model, state,
            event_id AS head_event_id, seq, weight_milli, held_milli_units, total_milli_units, estimated, expires_at
        FROM journal WHERE reservation_id <> ''
        ORDER BY reservation_id, seq DESC, event_id DESC
    ) h JOIN (
        SELECT reservation_id, count(*) AS events, min(event_time) AS first_event_at, max(event_time) AS last_event_at,
            sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
            sum(cached_input_tokens) AS cached_input_tokens, sum(reasoning_tokens) AS reasoning_tokens,
            sum(tool_calls) AS tool_calls, sum(images) AS images, sum(audio_ms) AS audio_ms,
            sum(gpu_ms) AS gpu_ms, sum(milli_units) AS milli_units
        FROM journal WHERE reservation_id <> '' GROUP BY reservation_id
    ) s USING (reservation_id)
) j
FULL JOIN (
    SELECT reservation_id, ARRAY[tenant_id, request_id, key_id, endpoint, model, state,
        head_event_id, seq::text, weight_milli::text, held_milli_units::text, total_milli_units::text,
        estimated::text, expires_at::text,
        events::text, first_event_at::text, last_event_at::text,
        input_tokens::text, output_tokens::text, cached_input_tokens::text, reasoning_tokens::text,
        tool_calls::text, images::text, audio_ms::text, gpu_ms::text, milli_units::text] AS figures
    FROM reservations
) r USING (reservation_id)
WHERE j.figures IS DISTINCT FROM r.figures
ORDER BY reservation_id
LIMIT $1
