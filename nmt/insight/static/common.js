"use strict";

/** The bytes that `packed` in pages.py wrote: base64 of gzip -> Promise<Uint8Array>. */
async function unpack(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length); // Uint8Array.from with a function takes ten times as long
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
