// Publishes with the official client's JetStream API to a stream of ours, and shows what comes back:
//
//     npm install && node publish.mjs nats://127.0.0.1:4222 orders.new 3
import { jetstream } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';

const [server, subject, count] = process.argv.slice(2);
const connection = await connect({ servers: server });
const js = jetstream(connection);
for (let number = 0; number < Number(count); number++) {
  const ack = await js.publish(subject, `message ${number}`, { msgID: `id-${number}` });
  console.log(JSON.stringify({ stream: ack.stream, seq: ack.seq, duplicate: ack.duplicate }));
}
const again = await js.publish(subject, 'message 0', { msgID: 'id-0' });
console.log(JSON.stringify({ stream: again.stream, seq: again.seq, duplicate: again.duplicate }));
try {
  await js.publish(subject, 'too late', { expect: { lastSequence: 1 } });
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
}
await connection.close();
