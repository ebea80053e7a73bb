// Server-sent events out of a response's body. EventSource cannot send a POST, so this is read by hand.

/** The `data` of each event in a stream of bytes, however the network cut it. Comments are skipped. */
export async function* events(stream) {
  let data = [];
  for await (const line of lines(stream)) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    if (line === "" && data.length) {
      yield data.join("\n");
      data = [];
    }
  }
}

/** Lines that end with \n, \r\n or \r. What follows the last end is cut off, and no line. */
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      // A \r at the very end may be half of a \r\n: it waits for what comes next.
      const parts = rest.split(/\r\n|\n|\r(?!$)/);
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stops listening lets the server know
  }
}
