// The official OpenAI client for Node against one base URL; prints what it got as JSON.
// node openai_client.mjs BASE_URL MODEL MESSAGES
import OpenAI from "openai";

const [baseURL, model, messages] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const request = { model, messages: JSON.parse(messages), temperature: 0, max_tokens: 12 };

const whole = await client.chat.completions.create(request);

let streamed = "";
let usage = 0;
const stream = await client.chat.completions.create({
  ...request,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage?.completion_tokens ?? usage;
}

let missing = null;
try {
  await client.chat.completions.create({ ...request, model: "no-such-model" });
} catch (error) {
  missing = { name: error.constructor.name, status: error.status, param: error.param };
}

const models = [];
for await (const card of client.models.list()) models.push(card.id);

console.log(
  JSON.stringify({ whole: whole.choices[0].message.content, streamed, usage, missing, models }),
);
