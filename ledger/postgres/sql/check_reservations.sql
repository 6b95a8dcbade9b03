-- Reservations that are not the fold of the journal's events. $1 bounds how
-- many are named. What the head says is read with one maximum over a text that
-- begins with whether it is final, the padded seq and the event id, so the
-- journal is not sorted.
SELECT coalesce(j.reservation_id, r.reservation_id),
    (string_to_array(j.head, E'\x01'))[2:] || ARRAY[j.events, j.input_tokens, j.output_tokens, j.cached_input_tokens, j.reasoning_tokens,
        j.tool_calls, j.images, j.audio_ms, j.gpu_ms, j.milli_units]::text[] || ARRAY[j.first_event_at, j.last_event_at]::text[],
    (string_to_array(r.head, E'\x01'))[2:] || ARRAY[r.events, r.input_tokens, r.output_tokens, r.cached_input_tokens, r.reasoning_tokens,
        r.tool_calls, r.images, r.audio_ms, r.gpu_ms, r.milli_units]::text[] || ARRAY[r.first_event_at, r.last_event_at]::text[]
FROM (
    SELECT reservation_id, count(*) AS events, min(event_time) AS first_event_at, max(event_time) AS last_event_at,
        max(((state IN ('settled', 'cancelled'))::int || E'\x01' || lpad(seq::text, 19, '0') || E'\x01' || event_id || E'\x01' || tenant_id || E'\x01' || request_id || E'\x01' || key_id
            || E'\x01' || endpoint || E'\x01' || model || E'\x01' || state || E'\x01' || weight_milli || E'\x01' || held_milli_units
            || E'\x01' || total_milli_units || E'\x01' || estimated || E'\x01' || expires_at) COLLATE "C") AS head,
        sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        sum(cached_input_tokens) AS cached_input_tokens, sum(reasoning_tokens) AS reasoning_tokens,
        sum(tool_calls) AS tool_calls, sum(images) AS images, sum(audio_ms) AS audio_ms,
        sum(gpu_ms) AS gpu_ms, sum(milli_units) AS milli_units
    FROM journal WHERE reservation_id <> '' GROUP BY reservation_id
) j
FULL JOIN (
    SELECT *, ((state IN ('settled', 'cancelled'))::int || E'\x01' || lpad(seq::text, 19, '0') || E'\x01' || head_event_id || E'\x01' || tenant_id || E'\x01' || request_id || E'\x01' || key_id
        || E'\x01' || endpoint || E'\x01' || model || E'\x01' || state || E'\x01' || weight_milli || E'\x01' || held_milli_units
        || E'\x01' || total_milli_units || E'\x01' || estimated || E'\x01' || expires_at) COLLATE "C" AS head
    FROM reservations
) r ON r.reservation_id = j.reservation_id
WHERE (j.events, j.first_event_at, j.last_event_at, j.input_tokens, j.output_tokens, j.cached_input_tokens, j.reasoning_tokens,
        j.tool_calls, j.images, j.audio_ms, j.gpu_ms, j.milli_units, j.head)
    IS DISTINCT FROM
    (r.events, r.first_event_at, r.last_event_at, r.input_tokens, r.output_tokens, r.cached_input_tokens, r.reasoning_tokens,
        r.tool_calls, r.images, r.audio_ms, r.gpu_ms, r.milli_units, r.head)
ORDER BY 1
LIMIT $1
