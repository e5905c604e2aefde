// The event stream of the gateway, read by fetch: an EventSource cannot send a token.

const SILENT_MS = 6000; // a stream is given up after
const AGAIN_MS = [1000, 2000, 4000, 8000, 15000];

// Calls `told(snapshot)` for every one, and `state(name, why)`: connecting, live, lost, token. It
// comes back only where a token is asked for.
export async function follow(token, told, state) {
  let failures = 0;
  for (;;) {
    let why = "the connection ended";
    try {
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const gaveUp = new AbortController();
      const reply = await fetch("live", { headers, cache: "no-store", signal: gaveUp.signal });
      if (reply.status === 401) {
        state("token", token ? "This is not the location's token." : "This location asks for its token.");
        return;
      }
      if (!reply.ok) throw new Error(await refusal(reply));
      state("live", "");
      await read(reply.body.getReader(), gaveUp, (snapshot) => {
        failures = 0;
        told(snapshot);
      });
    } catch (error) {
      why = error.name === "AbortError" ? "nothing came for some seconds" : error.message;
    }
    state("lost", why);
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(failures++, AGAIN_MS.length - 1)]));
    state("connecting", "");
  }
}

async function read(reader, gaveUp, told) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const timer = setTimeout(() => gaveUp.abort(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) told(JSON.parse(data.slice(6)));
    }
  }
}

async function refusal(reply) {
  try {
    return (await reply.json()).error.message;
  } catch {
    return `status ${reply.status}`;
  }
}
