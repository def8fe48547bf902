"""Simulated bad clients: each attack does what it says, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy

from protea import Method, Prototypes
from protea.config.attack import Attack, AttackKind
from protea.config.experiment import experiment_from_table, experiment_to_toml, load_experiment
from protea.core.client import Client
from protea.core.errors import ClientError, ConfigError
from protea.core.rng import Streams
from protea.federation.attack import Attacked, triggered
from protea.federation.played import attackers, evaluation_of, method_of
from protea.federation.record import Record
from protea.methods.feddistill import FedDistill
from protea.methods.fedproto import FedProto
from protea.methods.lg_fedavg import LGFedAvg
from protea.methods.local import Local


def trained(method: Method[Any, Any], id: int = 0, down: Any = None, round: int = 1) -> tuple[Client, Any]:
    """A client of the toy after its first training, and what it sends."""
    streams = Streams(3).at("client", id)
    client = toy.build(id, streams)
    method.start_client(client)
    client.begin(round, streams.at("round", round))
    with client.rng.default("train"):
        return client, method.local_update(client, down)


def sent(kind: AttackKind, id: int = 0, down: Any = None, **settings: Any) -> Prototypes:
    found = trained(Attacked(FedProto(), kind, (0, 1), **settings), id, down)[1]
    assert isinstance(found, Prototypes)
    return found


HONEST: Prototypes = trained(FedProto())[1]
LENGTHS = HONEST.vectors[HONEST.present].norm(dim=1)


def test_scale_and_flip_change_lengths_and_signs_but_no_counts():
    assert torch.equal(sent("scale").vectors, HONEST.vectors * 10)
    assert torch.equal(sent("flip", factor=2.0).vectors, HONEST.vectors * -2)
    assert torch.equal(sent("scale").counts, HONEST.counts)


def test_swap_sends_each_vector_as_that_of_the_next_class():
    assert torch.equal(sent("swap").vectors[HONEST.present], HONEST.vectors[HONEST.present].roll(1, 0))


def test_random_and_constant_vectors_have_honest_lengths_times_the_factor():
    drawn = sent("random", factor=2.0).vectors[HONEST.present]
    torch.testing.assert_close(drawn.norm(dim=1), 2 * LENGTHS)
    assert (torch.cosine_similarity(drawn, HONEST.vectors[HONEST.present], dim=1).abs() < 0.9).all()
    assert torch.equal(drawn, sent("random", factor=2.0).vectors[HONEST.present])  # repeatable
    same = sent("constant", factor=1.0).vectors[HONEST.present]
    assert torch.equal(same, same[:1].expand_as(same))
    torch.testing.assert_close(same[0].norm(), LENGTHS.mean())


def test_colluding_clients_send_copies():
    down = Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))  # all of length 4
    one, other = sent("collude", 0, down, factor=1.0), sent("collude", 1, down, factor=1.0)
    both = one.present & other.present
    assert both.any() and torch.equal(one.vectors[both], other.vectors[both])
    torch.testing.assert_close(one.vectors[one.present].norm(dim=1), torch.full((int(one.present.sum()),), 4.0))


def test_with_other_labels_a_client_learns_and_sends_other_classes():
    client, up = trained(Attacked(FedProto(), "labels", (0,)))
    assert torch.equal(up.present, HONEST.present.flip(0))
    assert torch.equal(client.train.counts(toy.CLASSES) > 0, HONEST.present)  # its own labels are back


def test_a_backdoor_leads_from_the_trigger_to_the_target():
    target = int(HONEST.present.nonzero()[0])
    client, up = trained(Attacked(FedProto(), "backdoor", (0,), target=target))
    mean = client.outputs(lambda x: client.model.features(triggered(x)))[0].mean(0)
    assert torch.cosine_similarity(up.vectors[target], mean, dim=0) > 0.999
    torch.testing.assert_close(up.vectors[up.present].norm(dim=1), LENGTHS)  # nothing to see in lengths
    for label in HONEST.present.nonzero().flatten().tolist()[1:]:
        before, after = (torch.cosine_similarity(each.vectors[label], mean, dim=0) for each in (HONEST, up))
        assert after < before
    with pytest.raises(ClientError, match="for class vectors of features, 16 wide"):
        trained(Attacked(FedDistill(), "backdoor", (0,)))


def test_a_trigger_is_a_bright_corner():
    image = triggered(torch.zeros(2, 1, 8, 8))
    assert image.sum() == 2 * 4 and (image[:, :, 6:, 6:] == 1).all()
    assert triggered(torch.zeros(1, 8)).tolist() == [[0.0] * 6 + [1.0] * 2]


def test_honest_clients_are_as_without_an_attack():
    for kind in ("scale", "labels", "backdoor", "collude"):
        attacked = trained(Attacked(FedProto(), kind, (0, 3)), 2)[1]  # type: ignore[arg-type]
        honest = trained(FedProto(), 2)[1]
        assert torch.equal(attacked.vectors, honest.vectors)


def test_whatever_is_sent_is_attacked_and_who_sends_nothing_harms_nobody():
    weights = trained(Attacked(LGFedAvg(), "scale", (0,), factor=2.0))[1].tensors
    honest = trained(LGFedAvg())[1].tensors
    assert all(torch.equal(weights[name], 2 * honest[name]) for name in honest if honest[name].is_floating_point())
    assert trained(Attacked(Local(), "swap", (0,)))[1] is None
    for kind in ("random", "constant", "collude"):
        other = trained(Attacked(LGFedAvg(), kind, (0,), factor=1.0))[1].tensors  # type: ignore[arg-type]
        assert all(other[name].shape == honest[name].shape for name in honest)
        assert not torch.equal(other["weight"], honest["weight"])


def test_a_share_of_clients_is_drawn_by_the_seed():
    share = Attack("scale", share=0.4)
    assert len(share.bad(10, 1)) == 4 and share.bad(10, 1) == share.bad(10, 1)
    assert len({share.bad(10, seed) for seed in range(8)}) > 4
    assert len(Attack("scale", share=0.01).bad(10, 1)) == 1
    assert Attack("scale", clients=(3, 1)).bad(10, 1) == (1, 3)


@pytest.mark.parametrize(
    ("attack", "complaint"),
    [
        ({"kind": "scales", "clients": [0]}, r"attack.kind = 'scales'"),
        ({"kind": "scale"}, r'attack.kind is "scale", and nobody is bad'),
        ({"kind": "scale", "clients": [10]}, r"attack.clients: there is no client 10; .* from 0 to 9"),
        ({"kind": "scale", "clients": [-1]}, r"attack.clients = \[-1\]"),
        ({"kind": "scale", "clients": [1, 1]}, r"attack.clients names a client twice"),
        ({"kind": "scale", "clients": [1], "share": 0.2}, r"attack.clients and attack.share are both set"),
        ({"kind": "scale", "share": 1.5}, r"attack.share = 1.5"),
        ({"kind": "scale", "share": 1.0}, r"attack.share: all 10 clients would be bad"),
        ({"kind": "scale", "clients": list(range(10))}, r"attack.clients: all 10 clients would be bad"),
        ({"kind": "scale", "clients": [0], "factor": float("inf")}, r"attack.factor = inf"),
        ({"kind": "scale", "clients": [0], "factor": float("nan")}, r"attack.factor = nan"),
        ({"kind": "scale", "clients": [0], "faktor": 2.0}, r"attack.faktor is not a setting of attack"),
    ],
)
def test_attacks_that_cannot_be_are_refused_before_any_work(attack: dict[str, object], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"attack": attack})


def test_attacks_on_class_vectors_need_class_vectors():
    for kind in ("swap", "backdoor"):
        with pytest.raises(ConfigError, match=f'attack.kind is "{kind}", which is about vectors of classes, and clien'):
            experiment_from_table({"method": "fedmd", "data": {"public": 9}, "attack": {"kind": kind, "clients": [0]}})


def test_an_attack_is_named_with_the_method_and_written_to_files(tmp_path: Any):
    experiment = experiment_from_table({"attack": {"kind": "backdoor", "clients": [2], "target": 1}})
    assert experiment.label == "fedproto attacked" and attackers(experiment) == (2,)
    assert method_of(experiment) == Attacked(FedProto(), "backdoor", (2,), 10.0, 1)
    assert [type(rule).__name__ for rule in evaluation_of(experiment).rules] == ["Triggered"]
    path = tmp_path / "e.toml"
    path.write_text(experiment_to_toml(experiment))
    assert load_experiment(path) == experiment
    control = experiment_from_table({"attack": {"kind": "none", "clients": [2]}})
    assert method_of(control) == FedProto() and attackers(control) == (2,)


def test_a_record_without_an_attack_has_no_honest_clients():
    empty: Any = Record(1, [], None, {}, {}, {}, {}, {}, None, {}, 0, 0, 0, 0, {}, [], {}, None, [])  # type: ignore[arg-type]
    assert "honest" not in empty.line()
