"""FedProto as a Flower app in Flower's Ray simulation: clients of htcnn8, whose weights are in the context's state.

The server polls for replies itself, every hundredth of a second, which is quicker than Flower's own loop.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from common import CLASSES, DIM, htcnn, samples, serve, settings
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor, nn


def client_app(given: dict) -> ClientApp:
    app = ClientApp()

    def own(context: Context) -> tuple[dict[str, Tensor], nn.Module]:
        client = int(context.node_config["partition-id"])
        torch.set_num_threads(1)
        with torch.random.fork_rng():
            torch.manual_seed(client)
            model = nn.Sequential(*htcnn(client % 8 + 1))
        if "model" in context.state:
            model.load_state_dict(context.state["model"].to_torch_state_dict())
        return samples(given["data"], client), model

    def prototypes(message: Message) -> tuple[Tensor, Tensor]:
        arrays = message.content["down"]
        return torch.from_numpy(arrays["vectors"].numpy().copy()), torch.from_numpy(arrays["known"].numpy().copy())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        data, model = own(context)
        body, head = model
        vectors, known = prototypes(message)
        optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"], foreach=True)
        for rows in torch.randperm(len(data["y"])).split(given["batch"]):
            y = data["y"][rows]
            z = body(data["x"].index_select(0, rows))
            loss = F.cross_entropy(head(z), y)
            if known.any():
                loss = loss + given["pull"] * ((z - vectors[y]) * known[y].unsqueeze(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            z = torch.cat([body(part) for part in data["x"].split(128)])
        counts = data["y"].bincount(minlength=CLASSES)
        means = torch.zeros(CLASSES, DIM).index_add_(0, data["y"], z) / counts.clamp(min=1).unsqueeze(1)
        context.state["model"] = ArrayRecord(model.state_dict())
        arrays = ArrayRecord({"vectors": Array(means.numpy()), "counts": Array(counts.numpy())})
        return Message(RecordDict({"up": arrays}), reply_to=message)

    @app.evaluate()
    @torch.no_grad()
    def evaluate(message: Message, context: Context) -> Message:
        data, model = own(context)
        vectors, known = prototypes(message)
        z = torch.cat([model[0](part) for part in data["x_test"].split(128)])
        answers = torch.cdist(z, vectors).masked_fill(~known, torch.inf).argmin(1)
        hits = MetricRecord({"hits": int((answers == data["y_test"]).sum()), "samples": len(answers)})
        return Message(RecordDict({"found": hits}), reply_to=message)

    return app


def server_app(given: dict) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := sorted(grid.get_node_ids())) < given["clients"]:
            time.sleep(0.1)
        vectors, known = np.zeros((CLASSES, DIM), np.float32), np.zeros(CLASSES, bool)

        def ask(kind: str) -> list[RecordDict]:
            """Replies in the order of nodes: float sums depend on it."""
            down = ArrayRecord({"vectors": Array(vectors), "known": Array(known)})
            content = RecordDict({"down": down, "config": ConfigRecord({"kind": kind})})
            waiting, found = set(grid.push_messages([Message(content, node, kind) for node in nodes])), {}
            while waiting:
                for reply in grid.pull_messages(waiting):
                    if reply.has_error():
                        raise RuntimeError(reply.error.reason)
                    waiting.discard(reply.metadata.reply_to_message_id)
                    found[reply.metadata.src_node_id] = reply.content
                time.sleep(0.01)
            return [found[node] for node in sorted(found)]

        def play() -> float:
            nonlocal vectors, known
            replies = [reply["up"] for reply in ask("train")]
            there = np.stack([reply["counts"].numpy() > 0 for reply in replies])
            sums = (np.stack([reply["vectors"].numpy() for reply in replies]) * there[:, :, None]).sum(0)
            now = there.any(0)
            mean = sums / np.maximum(there.sum(0), 1)[:, None]
            vectors, known = np.where(now[:, None], mean, vectors).astype(np.float32), known | now
            scores = [reply["found"] for reply in ask("evaluate")]
            return sum(each["hits"] for each in scores) / sum(each["samples"] for each in scores)

        serve(play)

    return app


if __name__ == "__main__":
    options = settings()
    run_simulation(
        server_app=server_app(options),
        client_app=client_app(options),
        num_supernodes=options["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "address": "local",  # never somebody else's cluster
                "num_cpus": options["threads"],
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": options["scratch"],
            },
        },
    )
