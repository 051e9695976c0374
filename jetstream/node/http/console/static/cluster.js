// The nodes of the cluster, and the numbers of the one that serves this page.

import { Poll, consoleOf, json } from "./api.js";
import { chart, charts } from "./charts.js";
import { facts, h, plainTable, show } from "./dom.js";
import { bytes, count, rate, v1 } from "./format.js";
import { history } from "./history.js";

const POLL_MS = 5_000;

/** Shows the cluster. */
export function clusterView({ failed, worked, ways }) {
  const live = h("div", {}, h("p", { class: "quiet" }, "Reading…"));
  const lines = h("div");
  const poll = new Poll(async (signal) => {
    show(live, clusterShown(await json(v1("cluster"), signal)));
    worked();
  }, POLL_MS, failed).start();
  const draw = () => show(lines, nodeCharts());
  document.addEventListener("metrics-read", draw);
  draw();
  ways([["jetstream", "cluster", "info"]], [v1("cluster"), "metrics"]);
  return {
    title: "Cluster",
    element: h("div", {}, live, lines),
    poll,
    close() {
      poll.stop();
      document.removeEventListener("metrics-read", draw);
    },
  };
}

function clusterShown(info) {
  const here = info.answered_by?.id;
  const alive = { true: "✓ alive", false: "✗ dead", null: "not known" };
  return [
    facts([["Cluster", info.name], ["Identity", info.cluster_id], ["This node", here],
      ["Metadata leader", info.metadata_leader ?? "none"], ["Voters", info.voters.join(", ")],
      ["About to vote", info.learners.join(", ") || null], ["Voters wanted", info.voters_wanted],
      ["Streams", count(info.streams)], ["Feature level", info.feature_level],
      ["Replicas of a new stream", info.default_replicas]]),
    h("h2", {}, "Nodes"),
    plainTable("Nodes", ["Node", "State", "Role", "Rack", "Start", "Readers' socket", "Version", "Level"],
      info.nodes.map((node) => [nodeCell(node, info.nodes, here),
        h("span", { class: `state ${node.alive === false ? "s2" : node.alive ? "s0" : "s1"}` }, alive[node.alive]),
        node.id === info.metadata_leader ? `${node.role}, leads the metadata log` : node.role, node.rack ?? "",
        count(node.node_epoch), `${node.host}:${node.port}`, node.version, count(node.feature_level)]),
      "No node has registered yet."),
  ];
}

function nodeCell(node, nodes, here) {
  const address = consoleOf(node.id, nodes);
  if (node.id === here) return `${node.id} (this one)`;
  if (address === null) return node.id;
  return h("a", { href: `${address}#/cluster`, title: `the console of ${node.id}` }, node.id);
}

const milliseconds = (seconds) => `${(seconds * 1000).toPrecision(3)} ms`;
const cores = (number) => `${Math.round(number * 100)} % of a core`;

function nodeCharts() {
  return charts(
    chart("Records committed here", history.rates("jetstream_stream_high_watermark"), rate),
    chart("Records written", history.rates("jetstream_disk_records_total"), rate),
    chart("A sync of the disk", history.ratios("jetstream_disk_sync_seconds_total", "jetstream_disk_commits_total"),
      milliseconds),
    chart("Streams' files", history.levels("jetstream_stream_bytes"), bytes),
    chart("Free on the disk", history.levels("jetstream_disk_free_bytes"), bytes),
    chart("Messages that wait", history.levels("jetstream_stream_waiting_messages"), count),
    chart("Readers' connections", history.levels("jetstream_socket_connections"), count),
    chart("Processor", history.rates("process_cpu_seconds_total"), cores),
    chart("Memory", history.levels("process_resident_memory_bytes"), bytes));
}
