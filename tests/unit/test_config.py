"""What mounts.yaml and config.yaml may say, where they are looked for, and how a mistake in them is named."""

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import avmfs_config
import pytest
import yaml
from avmfs_config import (
    AgentSettings,
    ConfigError,
    EmbeddingSettings,
    GossipSettings,
    Hook,
    Limits,
    Mount,
    Paths,
    Provider,
    QuotaSettings,
    Rule,
    SearchSettings,
    SearchWeights,
    Settings,
    WebhookSettings,
    agent_id,
    check,
    check_agent_id,
    default_settings,
    find_paths,
    load_mounts,
    load_settings,
    people,
    readers,
)
from avmfs_config.consolidate import CONSOLIDATE, DIGEST, ConsolidateSettings, DigestSettings
from avmfs_config.gossip import GOSSIP
from avmfs_config.outbox import WEBHOOKS, check_owner
from avmfs_config.parse import Readers, readers_of

ENVIRON = {"HOME": "/home/ada", "TEAM": "red"}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[[str | bytes], Settings]:
    return lambda content: load_settings(write(tmp_path, "config.yaml", content), ENVIRON)


@pytest.fixture
def mounts_of(tmp_path: Path) -> Callable[[str | bytes], tuple[Mount, ...]]:
    return lambda content: load_mounts(write(tmp_path, "mounts.yaml", content), ENVIRON)


# --- agent ids


@pytest.mark.parametrize("name", ["alice", "a", "0", "bob.2", "a_b-c", "x" * 64, "allison", "me2"])
def test_valid_agent_id_is_returned(name: str) -> None:
    assert check_agent_id(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("x" * 65, "at most 64"),
        ("all", "reserved"),
        ("shared", "reserved"),
        ("private", "reserved"),
        ("me", "reserved"),
        ("avmfs", "reserved"),
        ("Alice", "did you mean 'alice'"),
        ("ALL", "first a letter or digit$"),
        ("-a", "first a letter or digit"),
        (".a", "first a letter or digit"),
        ("a/b", "a-z 0-9"),
        ("a\n", "a-z 0-9"),
        ("é", "a-z 0-9"),
        ("a:b", "a-z 0-9"),
    ],
)
def test_invalid_agent_id_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_agent_id(name)


# --- paths


def test_paths_follow_xdg_defaults_below_home() -> None:
    paths = find_paths({"HOME": "/home/ada", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert paths == Paths(
        config_dir=Path("/home/ada/.config/avm"),
        data_dir=Path("/home/ada/.local/share/avm"),
        runtime_dir=Path("/run/user/7/avm"),
        mounts_file=Path("/home/ada/.config/avm/mounts.yaml"),
        config_file=Path("/home/ada/.config/avm/config.yaml"),
        database=Path("/home/ada/.local/share/avm/avm.db"),
    )


def test_xdg_variables_move_the_directories_unless_relative_or_empty() -> None:
    paths = find_paths({"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "rel"})
    assert paths.config_dir == Path("/c/avm")
    assert paths.data_dir == Path("/h/.local/share/avm")
    assert find_paths({"HOME": "/h", "XDG_CONFIG_HOME": ""}).config_dir == Path("/h/.config/avm")


def test_avm_variables_win_over_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "AVM_CONFIG_DIR": "/e/c", "AVM_DATA_DIR": "~/d"}
    paths = find_paths(environ | {"AVM_RUNTIME_DIR": "/e/run"})
    assert paths == Paths(
        Path("/e/c"),
        Path("/h/d"),
        Path("/e/run"),
        Path("/e/c/mounts.yaml"),
        Path("/e/c/config.yaml"),
        Path("/h/d/avm.db"),
    )
    paths = find_paths(environ | {"AVM_DB": "x.db", "AVM_MOUNTS": "/m.yaml", "AVM_CONFIG": "/c.yaml"})
    assert paths.database == tmp_path / "x.db"
    assert (paths.mounts_file, paths.config_file) == (Path("/m.yaml"), Path("/c.yaml"))


def test_a_database_that_is_a_symlink_is_where_that_leads(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/avm.db").symlink_to("../big/avm.db")
    environ = {"HOME": "/h", "AVM_DATA_DIR": str(tmp_path / "data")}
    assert find_paths(environ).database == Path(os.path.realpath(tmp_path)) / "big/avm.db"
    assert find_paths(environ | {"AVM_DB": "/none/avm.db"}).database == Path("/none/avm.db")


def test_runtime_dir_falls_back_to_a_directory_of_this_uid() -> None:
    usual = Path(f"/run/user/{os.getuid()}")
    expected = usual / "avm" if usual.is_dir() else Path(f"/tmp/avm-{os.getuid()}")
    assert find_paths({"HOME": "/h"}).runtime_dir == expected


def test_unknown_home_in_a_variable_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^environment: AVM_DB: no user named 'no-such-user'$"):
        find_paths({"HOME": "/h", "AVM_DB": "~no-such-user/x.db"})


def test_looking_for_paths_creates_nothing(tmp_path: Path) -> None:
    find_paths({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert list(tmp_path.iterdir()) == []


# --- settings


def test_defaults_are_the_documented_ones() -> None:
    settings = default_settings()
    assert settings.permissions == (Rule("/memory/*", "rw"), Rule("/live/*", "ro"))
    assert settings.default_access == "ro"
    assert (settings.providers, settings.uids) == ((), {})
    assert settings.embedding == EmbeddingSettings()
    assert settings.search == SearchSettings()
    assert settings.limits == Limits(message_bytes=65536, unread=100, versions=1000, history_bytes=256 << 20)


@pytest.mark.parametrize("content", ["", "# nothing\n", "{}", "---\n...\n", "\ufeff# with a byte order mark\n"])
def test_empty_config_is_the_defaults(content: str, settings_of: Any) -> None:
    assert settings_of(content) == default_settings()


def test_a_config_that_the_environment_names_has_to_be_there(tmp_path: Path) -> None:
    """Defaults would be another policy. Programs name the usual place to each other."""
    environ = {"AVM_CONFIG_DIR": str(tmp_path), "AVM_CONFIG": str(tmp_path / "no.yaml")}
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "no.yaml", environ)
    assert [each.key for each in check(find_paths(environ), environ)] == ["", "AVM_CONFIG"]
    usual = tmp_path / "config.yaml"
    assert load_settings(usual, {**environ, "AVM_CONFIG": str(usual)}) == default_settings()


def test_missing_config_and_dev_null_are_the_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "none.yaml", ENVIRON) == default_settings()
    assert load_settings(Path(os.devnull), ENVIRON) == default_settings()


def test_the_documented_config_is_read(settings_of: Any) -> None:
    settings = settings_of("""
providers:
  - {pattern: "/live/prices/{symbol}", handler: http, config: {url: "https://api.example.com/prices/${symbol}",
     headers: {Authorization: "Bearer ${API_KEY}"}}, ttl: 60}
  - {pattern: "/system/status", handler: script, config: {command: "uptime"}}
  - {pattern: "/live/indicators/*", handler: plugin, config: {plugin: "my_plugins.talib"}}
permissions:
  - {pattern: "/memory/*", access: rw, agents: [alice, bob]}
default_access: none
uids: {1001: [alice], 0: [alice, bob]}
embedding: {path: ~/weights/$TEAM, device: cuda, timeout_s: 2}
search: {ignore: ["*.log"], min_relevance: 0, weights: {session: 0, cosine: 2}}
""")
    assert settings.providers[0] == Provider(
        pattern="/live/prices/{symbol}",
        handler="http",
        config={
            "url": "https://api.example.com/prices/${symbol}",
            "headers": {"Authorization": "Bearer ${API_KEY}"},
        },
        ttl=60.0,
    )
    assert [provider.ttl for provider in settings.providers] == [60.0, None, None]
    assert settings.permissions == (Rule("/memory/*", "rw", ("alice", "bob")),)
    assert settings.default_access == "none"
    assert settings.uids == {1001: ("alice",), 0: ("alice", "bob")}
    assert settings.embedding == EmbeddingSettings(path=Path("/home/ada/weights/red"), device="cuda", timeout_s=2.0)
    assert settings.search == SearchSettings(
        ignore=("*.log",), min_relevance=0.0, weights=SearchWeights(session=0.0, cosine=2.0)
    )


def test_permissions_replace_the_default_list_and_other_keys_leave_it(settings_of: Any) -> None:
    assert settings_of("permissions: []").permissions == ()
    assert settings_of("default_access: none").permissions == default_settings().permissions


def test_provider_config_keeps_plain_data_as_written(settings_of: Any) -> None:
    config = "{a: 1, b: 1.5, c: true, d: null, e: [x, {f: ~}], g: 2026-03-07, h: 12:30, i: '${K}', j: =}"
    (provider,) = settings_of(f"providers: [{{pattern: /p, handler: x, config: {config}}}]").providers
    assert provider.config == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": None,
        "e": ["x", {"f": None}],
        "g": "2026-03-07",
        "h": "12:30",
        "i": "${K}",
        "j": "=",
    }


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("- a", "expected a mapping, not a list"),
        ("text", "expected a mapping, not the text 'text'"),
        ("permission: []", "permission: unknown key; did you mean permissions?"),
        ("zzz: 1", "zzz: unknown key; known keys: providers, permissions, default_access"),
        ("7: 1", "7: unknown key"),
        ('"a\\nb": 1', "'a\\nb': unknown key"),
        ("permissions:", "permissions: expected a list ([] for an empty one), not nothing"),
        ("permissions: {}", "permissions: expected a list, not a mapping"),
        ("permissions: [/a]", "permissions[0]: expected a mapping, not the text '/a'"),
        ("permissions: [{access: rw}]", "permissions[0].pattern: required"),
        ("permissions: [{pattern: /a}]", "permissions[0].access: required"),
        (
            "permissions: [{pattern: /a, access: wr}]",
            "permissions[0].access: expected rw, ro or none, not the text 'wr'",
        ),
        (
            "permissions: [{pattern: /a, access: no}]",
            "permissions[0].access: expected rw, ro or none, not false",
        ),
        ("permissions: [{pattern: a, access: rw}]", "permissions[0].pattern: must begin with '/', not 'a'"),
        ("permissions: [{pattern: /a/../b, access: rw}]", "permissions[0].pattern: must have no empty, '.'"),
        ("permissions: [{pattern: /a//b, access: rw}]", "permissions[0].pattern: must have no empty"),
        (
            "permissions: [{pattern: /a, access: rw, agents: [all]}]",
            "permissions[0].agents[0]: 'all' is reserved",
        ),
        ("permissions: [{pattern: /a, access: rw, agents: []}]", "permissions[0].agents: names nobody"),
        ("permissions: [{pattern: /a, access: rw, agents: }]", "permissions[0].agents: expected a list"),
        (
            "permissions: [{pattern: /a, access: rw, agents: bob}]",
            "permissions[0].agents: expected a list, not the text 'bob'",
        ),
        ("default_access: null", "default_access: expected rw, ro or none, not nothing"),
        ("providers: [{pattern: /a}]", "providers[0].handler: required"),
        ("providers: [{pattern: /a, handler: ''}]", "providers[0].handler: cannot be empty"),
        (
            "providers: [{pattern: /a, handler: os.system}]",
            "providers[0].handler: a handler's name is a-z, 0-9, '_' and '-', not 'os.system'",
        ),
        (
            "providers: [{pattern: '/a/{', handler: x}]",
            "providers[0].pattern: a placeholder is a name in braces",
        ),
        (
            "providers: [{pattern: '/{a}/{a}', handler: x}]",
            "providers[0].pattern: the same placeholder twice",
        ),
        *(
            (
                f"providers: [{{pattern: '/a/{step}', handler: x, values: {{b: [c]}}}}]",
                "providers[0].values: the part of the pattern with {b} has more that is not fixed",
            )
            for step in ("{a}-{b}", "{b}.{c}", "{b}*")
        ),
        (
            "providers: [{pattern: /a, handler: x}, {pattern: /a, handler: y}]",
            "providers[1].pattern: already used by providers[0]",
        ),
        ("providers: [{pattern: /a, handler: x, ttl: -1}]", "providers[0].ttl: must be at least 0.0, not -1"),
        (
            "providers: [{pattern: /a, handler: x, ttl: .inf}]",
            "providers[0].ttl: must be at least 0.0, not inf",
        ),
        (
            "providers: [{pattern: /a, handler: x, ttl: .nan}]",
            "providers[0].ttl: must be at least 0.0, not nan",
        ),
        (
            "providers: [{pattern: /a, handler: x, ttl: true}]",
            "providers[0].ttl: expected a number, not true",
        ),
        (
            "providers: [{pattern: /a, handler: x, ttl: 1:30}]",
            "providers[0].ttl: expected a number, not the text '1:30'",
        ),
        (
            "providers: [{pattern: /a, handler: x, config: {h: {1: a}}}]",
            "providers[0].config.h.1: a key must be text (put it in quotes)",
        ),
        ("providers: [{pattern: /a, handler: x, config: [a]}]", "providers[0].config: expected a mapping"),
        ("uids: {alice: [alice]}", "uids.alice: the key must be a Unix uid, a number without quotes"),
        ("uids: {'1001': [alice]}", "uids.1001: the key must be a Unix uid, a number without quotes"),
        ("uids: {-1: [alice]}", "uids.-1: the key must be a Unix uid"),
        ("uids: {4294967295: [alice]}", "uids.4294967295: the key must be a Unix uid"),
        ("uids: {1: alice}", "uids.1: expected a list, not the text 'alice'"),
        ("uids: {1: [7]}", "uids.1[0]: expected text (put it in quotes), not 7"),
        ("embedding: no", "embedding: expected a mapping, not false"),
        ("embedding: {enabled: 1}", "embedding.enabled: expected true or false, not 1"),
        ("embedding: {model: 3}", "embedding.model: expected text (put it in quotes), not 3"),
        ('embedding: {model: "a\\0b"}', "embedding.model: cannot contain a NUL character"),
        ("embedding: {path: weights}", "embedding.path: must be an absolute path or begin with ~"),
        ("embedding: {device: gpu}", "embedding.device: expected auto, cpu, mps or cuda, not the text 'gpu'"),
        ("embedding: {timeout: 1}", "embedding.timeout: unknown key; did you mean timeout_s?"),
        ("embedding: {timeout_s: 9999}", "embedding.timeout_s: must be from 0.0 to 3600.0, not 9999"),
        ("search: {min_relevance: 1.1}", "search.min_relevance: must be from 0.0 to 1.0, not 1.1"),
        ("search: {rerank: {weight: 2}}", "search.rerank: needs `model`, a folder with a cross-encoder, or `endpoint`"),
        (
            "search: {rerank: {model: /m, endpoint: 'http://x/'}}",
            "search.rerank: either `model`, a folder, or `endpoint`",
        ),
        ("search: {rerank: {model: /m, key_env: K}}", "search.rerank.key_env: is for an `endpoint`"),
        ("search: {rerank: {model: m}}", "search.rerank.model: "),
        (
            "search: {rerank: {endpoint: 'http://x/', key_env: K, key_file: /k}}",
            "search.rerank: either `key_env` or `key_file`",
        ),
        ("search: {rerank: {endpoint: x.com}}", "search.rerank.endpoint: expected an address such as https://"),
        ("search: {rerank: {endpoint: 'http://me@x/'}}", "search.rerank.endpoint: expected an address such as"),
        ("search: {rerank: {model: /m, top: 0}}", "search.rerank.top: must be from 1 to 200, not 0"),
        ("search: {max_tokens: 0}", "search.max_tokens: must be at least 1, not 0"),
        ("search: {max_tokens: 1.5}", "search.max_tokens: expected a whole number, not 1.5"),
        ("search: {ignore: [#*#]}", "3:1: "),
        (
            "search: {ignore: [null]}",
            "search.ignore[0]: expected text, not nothing (null, or an unquoted ~ or #)",
        ),
        ("limits: {unread: true}", "limits.unread: expected a whole number, not true"),
        (f"limits: {{unread: 1{'0' * 30}}}", "limits.unread: must be at least 1"),
    ],
)
def test_bad_config_names_file_key_and_reason(content: str, error: str, settings_of: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(content + "\n\n")
    assert str(caught.value).startswith(f"config.yaml: {error}")
    assert "\n" not in str(caught.value)


# --- mounts


def test_mounts_are_read_in_order_with_defaults_and_expansion(mounts_of: Any) -> None:
    mounts = mounts_of("""
mounts:
  - mountpoint: ~/agents/alice/avm/
    agent_id: alice
  - {mountpoint: "/srv//${TEAM}/./$TEAM", agent_id: bob, uid: 1001, read_only: true, urgent: inject,
     xattr: true, coherence: strict, allow_other: true}
  - {mountpoint: //x, agent_id: carol, uid: null}
""")
    assert mounts == (
        Mount(Path("/home/ada/agents/alice/avm"), "alice"),
        Mount(Path("/srv/red/red"), "bob", 1001, True, "inject", True, "strict", True),
        Mount(Path("/x"), "carol"),
    )
    assert str(mounts[2].mountpoint) == "/x"


def test_the_example_has_every_key_with_its_default(mounts_of: Any) -> None:
    text = (Path(__file__).parents[2] / "mounts.example.yaml").read_text()
    assert [mount.agent_id for mount in mounts_of(text)] == ["alice", "bob"]
    head, every = text.split("  # Every key, with its default:\n")
    keys = {line.split(":")[0].strip(" #-") for line in every.splitlines()}
    assert keys == {field.name for field in dataclasses.fields(Mount)}
    whole = head + re.sub("^  # ", "  ", every, flags=re.MULTILINE).replace("~carol", "/home/carol")
    carol = mounts_of(whole)[2]
    assert carol == Mount(carol.mountpoint, "carol", uid=carol.uid, link=carol.link)
    assert carol.uid is not None and carol.link is not None
    assert "later release" not in every  # all of them work: tests/mount


def test_no_mounts_is_a_valid_list(mounts_of: Any) -> None:
    assert mounts_of("mounts: []") == ()


def two(first: str, second: str, agent: str = "bob") -> str:
    return f"mounts: [{{mountpoint: {first}, agent_id: alice}}, {{mountpoint: {second}, agent_id: {agent}}}]"


def one(rest: str) -> str:
    return f"mounts: [{{mountpoint: /m, agent_id: alice, {rest}}}]"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "mounts: required"),
        ("mounts:", "mounts: expected a list ([] for an empty one), not nothing"),
        ("mount: []", "mount: unknown key; did you mean mounts?"),
        ("mounts: [{mountpoint: /m}]", "mounts[0].agent_id: required"),
        ("mounts: [{agent_id: a}]", "mounts[0].mountpoint: required"),
        (two("/a", "/b", "Bob"), "mounts[1].agent_id: 'Bob' is not an agent id"),
        (two("/a", "/b", "me"), "mounts[1].agent_id: 'me' is reserved"),
        (two("/a", "/b", "no"), "mounts[1].agent_id: expected text (put it in quotes), not false"),
        (two("/a", "/b", "007"), "mounts[1].agent_id: expected text (put it in quotes), not 7"),
        (two("/a", "/b", "alice"), "mounts[1].agent_id: alice is already mounted by mounts[0]"),
        (two("/a", "/a/"), "mounts[1].mountpoint: /a is already used by mounts[0]"),
        (two("/a", "/a/b"), "mounts[1].mountpoint: /a/b lies inside /a (mounts[0])"),
        (two("/a/b", "/a"), "mounts[1].mountpoint: /a/b (mounts[0]) lies inside /a"),
        (two("/a", "/"), "mounts[1].mountpoint: cannot be the root of the filesystem"),
        (
            two("/a", "'~'"),
            "mounts[1].mountpoint: /home/ada would hide /home/ada/.config/avm, which avmfs needs",
        ),
        (two("/a", "~/.local/share/avm"), "mounts[1].mountpoint: /home/ada/.local/share/avm would hide"),
        (two("/a", "~"), "mounts[1].mountpoint: expected text, not nothing (null, or an unquoted ~"),
        (two("/a", "rel/b"), "mounts[1].mountpoint: must be an absolute path or begin with ~, not 'rel/b'"),
        (two("/a", "/b/../c"), "mounts[1].mountpoint: must not contain '..'"),
        (two("/a", "$NOPE/c"), "mounts[1].mountpoint: $NOPE is not set in the environment"),
        (two("/a", '"/x/${NOPE"'), "mounts[1].mountpoint: '${' without a name and '}'"),
        (two("/a", "~no-such-user/c"), "mounts[1].mountpoint: no user named 'no-such-user'"),
        (one("readonly: true"), "mounts[0].readonly: unknown key; did you mean read_only?"),
        (one("urgent: inject"), "mounts[0].urgent: inject needs read_only: true (on a writable mount"),
        (one("urgent: inject, read_only: false"), "mounts[0].urgent: inject needs read_only: true"),
        (one("urgent: yes"), "mounts[0].urgent: expected banner or inject, not true"),
        (one("coherence: strictly"), "mounts[0].coherence: expected strict or close-to-open"),
        (one("uid: alice"), "mounts[0].uid: expected a whole number, not the text 'alice'"),
        (one("uid: -1"), "mounts[0].uid: must be from 0 to 4294967294, not -1"),
        (one("xattr: 'true'"), "mounts[0].xattr: expected true or false, not the text 'true'"),
    ],
)
def test_bad_mounts_name_file_key_and_reason(content: str, error: str, mounts_of: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        mounts_of(content + "\n")
    assert str(caught.value).startswith(f"mounts.yaml: {error}")


def test_siblings_with_a_common_prefix_are_not_nested(mounts_of: Any) -> None:
    assert len(mounts_of(two("/a", "/ab"))) == 2


def test_mounting_over_the_configured_database_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "mounts.yaml", "mounts: [{mountpoint: /srv/avm, agent_id: a}]")
    with pytest.raises(ConfigError, match=r"would hide /srv/avm/my\.db"):
        load_mounts(path, {"HOME": "/h", "AVM_DB": "/srv/avm/my.db"})


def test_missing_mounts_file_says_how_to_create_one_and_the_command_works(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "mounts.yaml"
    with pytest.raises(ConfigError) as caught:
        load_mounts(path, ENVIRON)
    assert str(caught.value).startswith(f"mounts.yaml: no such file: {path}; create it, for example: ")
    subprocess.run(["/bin/sh", "-c", caught.value.reason.partition("for example: ")[2]], check=True)
    assert load_mounts(path, ENVIRON) == (Mount(Path("/home/ada/agents/alice/avm"), "alice"),)


# --- the file itself


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        ("default_access: ro\nuids: [1, }\n", "2:11", "did not find expected node content"),
        ("a: b: c\n", "1:5", "mapping values are not allowed in this context"),
        ("search: {ignore: [*.swp]}\n", "1:20", "put text that begins with * or & in quotes"),
        ("uids: &x {}\nlimits: *x\n", "1:7", "anchors and aliases are not supported"),
        ("limits: *x\n", "1:9", "anchors and aliases are not supported"),
        ("default_access: ro\ndefault_access: rw\n", "default_access", "duplicate key: lines 1 and 2"),
        (
            "providers:\n- pattern: /a\n  handler: x\n  config: {u: 1, u: 2}\n",
            "providers[0].config.u",
            "duplicate key: lines 4 and 4",
        ),
        ("uids: {1: [a], 0x1: [b]}\n", "uids.1", "duplicate key"),
        (
            "limits: !!python/object/apply:os.system ['true']\n",
            "1:9",
            "tag !!python/object/apply:os.system is not",
        ),
        ("default_access: !mine ro\n", "1:17", "tag !mine is not supported"),
        ("limits: !!set {a}\n", "1:9", "tag !!set is not supported"),
        ("limits: {unread: !!int abc}\n", "1:18", "'abc' is not a valid int"),
        ("limits: {unread: !!bool abc}\n", "1:18", "'abc' is not a valid bool"),
        ("<<: {default_access: rw}\n", "<<", "unknown key"),
        ("true: 1\n", "1:1", "a key must be text (put it in quotes)"),
        ("? [a]\n: 1\n", "1:3", "a key must be text (put it in quotes)"),
        ("default_access: ro\n---\ndefault_access: rw\n", "2:1", "but found another document"),
        ("search: " + "[" * 500 + "\n", "1:40", "nested deeper than 32 levels"),  # of 1,000 libyaml complains itself
        ("limits: {unread: " + "9" * 5000 + "}\n", "1:18", "a number of more than 64 characters"),
        ("a: b\nc: \x01\n", "2:4", "a character that YAML does not allow"),
        (b"a: \xff\n", "", "not UTF-8 text (byte 3)"),
        (b"#" * (1024 * 1024 + 1), "", "larger than 1048576 bytes"),
    ],
)
def test_broken_yaml_names_its_place(content: str | bytes, key: str, reason: str, settings_of: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(content)
    assert caught.value.key == key
    assert reason in caught.value.reason


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="both parsers are compared")
@pytest.mark.parametrize(
    "content",
    [
        "default_access: none\n",
        "limits: *x\n",
        "a: b: c\n",
        "a: \x01\n",
        "x: [",
        'embedding: {model: "\\ud800"}\n',
        "a: 1\n---\nb: 2\n",
    ],
)
def test_pure_python_yaml_agrees_with_libyaml_on_what_is_refused(
    content: str, settings_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome() -> object:
        try:
            return settings_of(content)
        except ConfigError:
            return "refused"

    with_c = outcome()
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert outcome() == with_c


@pytest.mark.slow
def test_the_largest_allowed_file_is_read_in_reasonable_time(settings_of: Any) -> None:
    entry = "- {pattern: /memory/some/folder/*, access: rw, agents: [alice]}\n"
    started = time.process_time()
    settings = settings_of("permissions:\n" + entry * ((1024 * 1024 - 20) // len(entry)))
    assert len(settings.permissions) > 16000
    assert time.process_time() - started < 30


def test_a_directory_a_fifo_and_a_dangling_link_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "folder").mkdir()
    write(tmp_path, "file", "")
    for name, reason in {
        "fifo": "is not a regular file",
        "folder": "is not a regular file",
        "link": "is a symbolic link to nothing",
        "file/config.yaml": "Not a directory",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            load_settings(tmp_path / name, ENVIRON)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_unreadable_file_is_an_error_not_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "config.yaml", "")
    path.chmod(0)
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot read .*: Permission denied"):
        load_settings(path, ENVIRON)


# --- check, and the error itself


def test_check_reports_each_file_that_cannot_be_used(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "AVM_CONFIG_DIR": str(tmp_path)}
    paths = find_paths(environ)
    assert [problem.file for problem in check(paths, environ)] == ["mounts.yaml"]
    write(tmp_path, "mounts.yaml", "mounts: [{mountpoint: /m, agent_id: all}]")
    write(tmp_path, "config.yaml", "default_access: wr")
    assert [(problem.file, problem.key) for problem in check(paths, environ)] == [
        ("mounts.yaml", "mounts[0].agent_id"),
        ("config.yaml", "default_access"),
    ]
    write(tmp_path, "mounts.yaml", "mounts: [{mountpoint: /m, agent_id: alice}]")
    write(tmp_path, "config.yaml", "default_access: rw")
    assert check(paths, environ) == []


def test_error_is_one_line_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("mounts.yaml", "mounts[1].agent_id", "required")))
    assert str(error) == "mounts.yaml: mounts[1].agent_id: required"
    assert (error.file, error.key, error.reason) == ("mounts.yaml", "mounts[1].agent_id", "required")
    assert str(ConfigError("mounts.yaml", "", "no such file")) == "mounts.yaml: no such file"


def test_values_survive_pickling() -> None:
    for value in (default_settings(), Mount(Path("/m"), "alice"), find_paths(ENVIRON)):
        assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from avmfs_config import *", {"yaml", "importlib.resources"}),
        ("from avmfs_config import find_paths", {"yaml", "avmfs_config.readers", "avmfs_config.settings"}),
    ],
)
def test_import_loads_only_what_is_used(statement: str, absent: set[str]) -> None:
    code = f"{statement}\nimport sys\nassert {absent!r}.isdisjoint(sys.modules)"
    source = str(Path(readers.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": source})


def test_every_public_name_is_there() -> None:
    for name in avmfs_config.__all__:
        assert getattr(avmfs_config, name).__module__.startswith("avmfs_config.")
    assert not hasattr(avmfs_config, "nothing")


# --- agents


AGENTS = """
agents:
  alice: {groups: [desk, desk, admin], capabilities: [sudo, write], quota: {bytes: 10, unread: null}}
  bob:
  "*": {capabilities: []}
permissions:
  - {pattern: "/memory/desk/*", access: rw, groups: [desk], agents: [bob]}
"""


def test_agents_have_groups_capabilities_and_quotas(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(AGENTS.replace("  bob:\n", "  bob: {}\n"))
    found = load_settings(tmp_path / "config.yaml", ENVIRON)
    assert dict(found.agents) == {
        "alice": AgentSettings(("admin", "desk"), ("sudo", "write"), QuotaSettings(bytes=10)),
        "bob": AgentSettings(),
        "*": AgentSettings(capabilities=()),
    }
    assert found.permissions == (Rule("/memory/desk/*", "rw", ("bob",), ("desk",)),)
    assert found.apart_from_rules() == default_settings().apart_from_rules()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("agents: {Alice: {}}", "agents.Alice: 'Alice' is not an agent id"),
        ("agents: {bob: }", "agents.bob: "),
        ("agents: {bob: {capabilities: [root]}}", "agents.bob.capabilities[0]: expected search_all, write or sudo"),
        ("agents: {bob: {quota: {nodes: -1}}}", "agents.bob.quota.nodes: must be at least 0"),
        ("agents: {bob: {quotas: {}}}", "agents.bob.quotas: unknown key; did you mean quota?"),
        ("agents: {bob: {groups: [The Desk]}}", "agents.bob.groups[0]: a group is"),
        ("agents: {'*': {groups: [g]}}", "agents.*.groups: name the members"),
        ("agents: {'*': {capabilities: [search_all]}}", "agents.*.capabilities: search_all for everybody"),
        ("permissions: [{pattern: /m, access: rw, groups: [desk]}]", "permissions[0].groups[0]: no agent is in"),
        ("permissions: [{pattern: /m, access: rw, groups: []}]", "permissions[0].groups: names nobody"),
    ],
)
def test_what_is_wrong_with_an_agent_is_said_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "config.yaml", ENVIRON)
    assert f"config.yaml: {place}" in str(caught.value)


# --- the schema for editors, and the readers, say what the dataclasses say

SCHEMA = json.loads((Path(readers.__file__).parent / "schema.json").read_text())
RECORDS: dict[type[Any], Readers] = {
    Mount: readers.MOUNT,
    Rule: readers.RULE,
    Provider: readers.PROVIDER,
    EmbeddingSettings: {},
    SearchSettings: {},
    Limits: {},
    AgentSettings: people.AGENT,
    QuotaSettings: {},
    GossipSettings: GOSSIP,
    ConsolidateSettings: CONSOLIDATE,
    DigestSettings: DIGEST,
    WebhookSettings: WEBHOOKS,
    Hook: readers.HOOK,
    Settings: readers.SETTINGS,
}
FIELDS = [(record, item) for record in RECORDS for item in dataclasses.fields(record)]


@pytest.mark.parametrize("record", RECORDS)
def test_schema_and_readers_have_exactly_the_fields(record: type[Any]) -> None:
    names = [item.name for item in dataclasses.fields(record)]
    schema = SCHEMA["$defs"][record.__name__]
    assert list(schema["properties"]) == names
    assert RECORDS[record].keys() <= {*names} and list(readers_of(record, RECORDS[record])) == names
    assert schema["additionalProperties"] is False
    required = [
        item.name
        for item in dataclasses.fields(record)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]
    if record is not Settings:  # where the packaged defaults.yaml fills in
        assert schema.get("required", []) == required


@pytest.mark.parametrize(("record", "item"), FIELDS)
def test_schema_gives_the_default_and_the_choices(record: type[Any], item: Any) -> None:
    schema = SCHEMA["$defs"][record.__name__]["properties"][item.name]
    if item.default is not dataclasses.MISSING and (record, item.name) not in ((Rule, "agents"), (Rule, "groups")):
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        assert schema["default"] == default
    choices = get_args(get_type_hints(record)[item.name])
    if choices and all(isinstance(choice, str) for choice in choices):
        place = SCHEMA["$defs"]["access"] if "access" in item.name else schema
        assert place["enum"] == list(choices)


def test_schema_has_the_rule_for_agent_ids_and_handlers() -> None:
    schema = SCHEMA["$defs"]["agent_id"]
    assert schema["pattern"] == f"^{agent_id.AGENT_ID.pattern}$"
    assert schema["not"]["enum"] == list(agent_id.RESERVED)
    handler = SCHEMA["$defs"]["Provider"]["properties"]["handler"]
    assert handler["pattern"] == f"^{readers.HANDLER.pattern}$"


def test_every_reference_in_the_schema_resolves() -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in references(item)]
        if not isinstance(node, dict):
            return []
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for item in node.values() for found in references(item)]

    assert {name.removeprefix("#/$defs/") for name in references(SCHEMA)} <= set(SCHEMA["$defs"])


# --- webhooks and hooks

HOOK = 'hooks:\n  - {pattern: "/memory/*", command: ["/bin/true", "-x"], event: write, timeout_s: 2}\n'


def test_webhooks_and_hooks_are_read(settings_of: Any) -> None:
    found = settings_of(HOOK + "webhooks: {allow: [127.0.0.1, 10.0.0.0/8, Build.Example., localhost], attempts: 3}\n")
    assert found.hooks == (Hook("/memory/*", ("/bin/true", "-x"), "write", 2.0),)
    assert found.webhooks == WebhookSettings(("127.0.0.1/32", "10.0.0.0/8", "build.example", "localhost"), 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('hooks: [{pattern: "/m", command: "rm -rf /"}]', "hooks[0].command: expected a list"),
        ('hooks: [{pattern: "/m", command: [rm]}]', "hooks[0].command[0]: must be an absolute path"),
        ('hooks: [{pattern: "/m", command: []}]', "hooks[0].command: needs a program"),
        ('hooks: [{pattern: "/m", command: [/bin/true], event: tell}]', "hooks[0].event: expected any"),
        ("webhooks: {allow: [http://x/]}", "webhooks.allow[0]: expected a host name"),
        ("webhooks: {allow: [1.2.3]}", "webhooks.allow[0]: expected a host name"),
    ],
)
def test_a_bad_webhook_or_hook_names_its_place(content: str, said: str, settings_of: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(content)
    assert said in str(caught.value)


@pytest.mark.parametrize("writable", ["file", "directory"])
def test_hooks_are_refused_in_a_file_that_everybody_can_write(writable: str, tmp_path: Path) -> None:
    path = tmp_path / "config" / "config.yaml"
    path.parent.mkdir()
    path.write_text(HOOK)
    assert load_settings(path, ENVIRON).hooks
    (path if writable == "file" else path.parent).chmod(0o777)
    with pytest.raises(ConfigError, match=r"hooks: .*can be written by everybody"):
        load_settings(path, ENVIRON)
    path.write_text("webhooks: {attempts: 2}\n")
    assert load_settings(path, ENVIRON).webhooks.attempts == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_hooks_are_refused_in_a_file_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(HOOK)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        load_settings(path, ENVIRON)


def test_a_file_that_goes_while_it_is_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml: No such file or directory"):
        check_owner(tmp_path / "config.yaml", (Hook("*", ("/bin/true",)),))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{every: daily}", "consolidate.every: expected a duration such as 30m, 12h, 1d or 1w, not 'daily'"),
        ("{every: 0d}", "consolidate.every: expected a duration"),
        ("{every: 5}", "consolidate.every: expected text"),
        ("{limit: 0}", "consolidate.limit: must be"),
        ("{model: m}", "consolidate: `endpoint`, the address of a /chat/completions, and `model` go together"),
        ("{endpoint: 'ftp://x', model: m}", "consolidate.endpoint: expected an address"),
        ("{key_env: K}", "consolidate.key_env: is for an `endpoint`"),
        ("{endpoint: 'http://x', model: m, key_env: K, key_file: /k}", "consolidate: either `key_env` or `key_file`"),
        ("{evry: 1d}", "consolidate.evry: unknown key; did you mean every?"),
    ],
)
def test_consolidation_is_said_right_or_refused(settings_of: Any, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(f"consolidate: {text}")
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("08:00", 480), ("'18:30'", 1110), ("18:30", 1110), ("9:05", 545), ("00:10", 10), ("null", None)],
)
def test_the_hour_of_a_digest_is_local_time_with_quotes_or_without(
    settings_of: Any, text: str, minutes: int | None
) -> None:
    assert settings_of(f"digest: {{at: {text}}}").digest.at == minutes


@pytest.mark.parametrize("text", ["'24:00'", "8", "08:60", "daily", "-1", "900", "1440", "true", "1.5", "''"])
def test_what_is_no_hour_is_refused(settings_of: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"digest\.at: "):
        settings_of(f"digest: {{at: {text}}}")


def test_how_often_is_a_duration(settings_of: Any) -> None:
    for text, seconds in (("30m", 1800), ("12h", 43_200), ("1d", 86_400), ("2w", 1_209_600), ("null", None)):
        assert settings_of(f"consolidate: {{every: {text}}}").consolidate.every == seconds
