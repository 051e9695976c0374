// Publishes records in one batch envelope, and shows the one ack that they get:
//
//     npm install && node publish_batch.mjs nats://127.0.0.1:4222 orders.new 1000
import { connect } from '@nats-io/transport-node';
import { Binary, Table, tableToIPC, vectorFromArray } from 'apache-arrow';
import { batch } from './envelope.mjs';

const [server, subject, count] = process.argv.slice(2);
const values = Array.from({ length: Number(count) }, (_, number) => new TextEncoder().encode(`record ${number}`));
const table = new Table({ value: vectorFromArray(values, new Binary()) });
const payload = batch(tableToIPC(table, 'stream'), values.length, { messageId: 'batch-1', correlationId: 'c-1' });

const connection = await connect({ servers: server });
for (let attempt = 0; attempt < 2; attempt++) {
  const reply = await connection.request(subject, payload, { timeout: 5000 });
  console.log(reply.string());
}
await connection.close();
