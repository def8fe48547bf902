from __future__ import annotations

import pytest
from own_models import smallest
from pydantic import TypeAdapter, ValidationError

from protea.config.families import FAMILIES, Member, Models, members
from protea.config.registry import table
from protea.core.errors import ConfigError, PluginError
from protea.models.hf import KNOWN


def names(family: str) -> str:
    return " ".join(member.architecture.removeprefix("resnet") for member in members(family))


def test_families_of_the_papers():
    assert names("htfe2") == "cnn4 18"
    assert names("htfe3") == "10 18 34"
    assert names("htfe4") == "cnn4 googlenet mobilenet_v2 18"
    assert names("htfe5") == "cnn4 10 18 34 50"
    assert names("htfe8") == "cnn4 googlenet mobilenet_v2 18 34 50 101 152"
    assert names("htfe9") == "4 6 8 10 18 34 50 101 152"
    assert names("htcnn8") == " ".join(f"htcnn{i}" for i in range(1, 9))
    assert names("fedpagr5") == "cnn mlp 18 googlenet mobilenet_v2"
    assert names("protonorm4") == "8 mobilenet_v2 shufflenet_v2_x1_0 efficientnet_b0"
    assert len(set(members("tiny5"))) == 5


def test_heads_of_htc4():
    assert [member.head for member in members("htc4")] == [(), (512,), (256,), (128,)]
    assert names("htc4") == "34 34 34 34"
    assert [member.head for member in members("htfe8-htc4")] == [(), (512,), (256,), (128,)] * 2
    assert names("htfe8-htc4") == names("htfe8")


def test_every_member_of_every_family_exists():
    found = {member.architecture for family in FAMILIES.values() for member in family}
    assert found - {f"hf:{name}" for name in KNOWN} <= table("architectures").keys()


def test_one_architecture_is_a_family_of_one():
    assert members("cnn4") == (Member("cnn4"),)
    assert members("torchvision:resnet18") == (Member("torchvision:resnet18"),)


def test_members_can_be_listed():
    listed = ("mlp", {"name": "cnn4", "width": 64, "head": [32]})
    expected = (Member("mlp"), Member("cnn4", {"width": 64}, (32,)))
    assert members("tiny5", listed) == expected
    assert members(Models(members=listed)) == expected
    assert members(Models()) == FAMILIES["tiny5"]


def test_an_unknown_name_is_answered_with_the_nearest_one():
    with pytest.raises(PluginError, match=r"'htef8' is neither a family .*  Did you mean htfe8\?"):
        members("htef8")
    with pytest.raises(PluginError, match=r"'resnet19' is not an architecture.  Did you mean resnet18\?"):
        members("tiny5", ["resnet19"])


@pytest.mark.parametrize("head", [512, [0], ["big"], [True]], ids=str)
def test_a_head_is_a_list_of_sizes(head):
    with pytest.raises(ConfigError, match=r"mlp: head is .* as in \[256\]"):
        Member.of({"name": "mlp", "head": head})


def test_a_table_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="names no architecture"):
        Member.of({"width": 3})


def test_members_with_other_settings_are_other_members():
    assert len({Member("mlp"), Member("mlp"), Member("mlp", {"hidden": [3]}), Member("mlp", head=(3,))}) == 3


def test_settings_are_checked_where_a_file_is_read():
    settings = TypeAdapter(Models)
    given = {
        "members": ["mlp", {"name": "cnn4", "width": 8}],
        "dim": 64,
        "adapter": "projector",
        "server": "cnn",
    }
    assert members(settings.validate_python(given))[1] == Member("cnn4", {"width": 8})
    for wrong in ({"dim": 0}, {"adapter": "none"}, {"dropout": 1.0}):
        with pytest.raises(ValidationError):
            settings.validate_python(wrong)


def test_smallest_member():
    def of(family: str) -> Member:
        return smallest(members(family), shape=(3, 32, 32), classes=10, dim=512)

    assert of("htfe3") == Member("resnet10")
    assert of("htcnn8") == Member("htcnn2")
    assert of("htc4") == Member("resnet34")  # with the shallowest head
