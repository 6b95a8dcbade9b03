// Portkey adds headers to the answer of a stream, which Node forbids for what
// its fetch returned: without this its streams end as status 500. Loaded before it
// with `node --import`.
const { fetch, Response, Headers } = globalThis;
globalThis.fetch = async (...args) => {
  const answer = await fetch(...args);
  const { status, statusText } = answer;
  return new Response(answer.body, { status, statusText, headers: new Headers(answer.headers) });
};
