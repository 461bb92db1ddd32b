"""A fake gcloud for the scripts of `doctor`: its commands are recorded, and applied to a project.

`install` puts a program `gcloud` into a folder for PATH. It answers `describe` from earlier creations, and writes
every other command to a file. `apply` checks these against the reference, and changes the project.
"""

import shlex
from pathlib import Path

from tests.support.fakes.google_cloud import PROJECT_NUMBER, Account, Bucket, GoogleCloud

_PROGRAM = """#!/usr/bin/env bash
kind="" verb="" name=""
for word in "$@"; do
  case $word in
    --preference-id=*) name=${word#*=} ;;
    -*) ;;
    describe | create) verb=$word ;;
    *) if [[ $verb ]]; then name=$word; else kind+="$word "; fi ;;
  esac
done
thing="$kind${name%%@*}"
there() { grep -qxF -- "$thing" "$FOLDER/there" 2>/dev/null; }
if [[ $verb == describe ]]; then there; exit; fi
if [[ $verb == create && $kind != *identity* ]]; then
  if there; then echo "ALREADY_EXISTS: $thing" >&2; exit 1; fi
  echo "$thing" >>"$FOLDER/there"
fi
echo "$*" >>"$FOLDER/commands"
"""
# Rule: an unknown flag and a missing required flag are errors (https://cloud.google.com/sdk/gcloud/reference: services
# enable, beta services identity create, storage buckets create and add-iam-policy-binding, iam service-accounts create
# and add-iam-policy-binding, projects add-iam-policy-binding, artifacts repositories create and add-iam-policy-binding,
# beta quotas preferences create, container node-pools create)
# Rule: up to release 578, quotas are only in the beta track (google-cloud-sdk lib/surface/quotas/__init__.py)
# Rule: a quota increase requires an e-mail address (google/api/cloudquotas/v1/resources.proto, contact_email)
_FLAGS = {
    "services enable": ((), ("project",)),
    "beta services identity create": (("service",), ("project",)),
    "storage buckets create": ((), ("location", "project", "uniform-bucket-level-access")),
    "storage buckets add-iam-policy-binding": (("member", "role"), ("condition",)),
    "iam service-accounts create": ((), ("project", "display-name")),
    "iam service-accounts add-iam-policy-binding": (("member", "role"), ("condition", "project")),
    "projects add-iam-policy-binding": (("member", "role"), ("condition",)),
    "artifacts repositories create": (("repository-format",), ("location", "project")),
    "artifacts repositories add-iam-policy-binding": (("member", "role"), ("location", "project", "condition")),
    "beta quotas preferences create": (
        ("preferred-value", "quota-id", "service"),
        ("project", "dimensions", "preference-id", "email", "justification"),
    ),
    "container node-pools create": (
        (),
        (
            *("cluster", "location", "project", "machine-type", "tpu-topology", "num-nodes", "enable-autoscaling"),
            *("min-nodes", "max-nodes", "spot", "scopes", "node-locations", "accelerator"),
        ),
    ),
}


def install(folder: Path) -> dict[str, str]:
    """Put the program into a folder; returns the environment variables of a script that uses it."""
    program = folder / "gcloud"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "FOLDER": str(folder)}


def commands(folder: Path) -> list[str]:
    """Return the commands that change something, in order."""
    path = folder / "commands"
    return path.read_text().splitlines() if path.exists() else []


def apply(command: str, cloud: GoogleCloud) -> None:
    """Check a command against the reference, and change the project."""
    words = shlex.split(command)
    plain = [word for word in words if not word.startswith("--")]
    verb, name = (" ".join(plain), "") if plain[-1] == "create" else (" ".join(plain[:-1]), plain[-1])
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    required, others = _FLAGS[verb]
    assert set(required) <= flags.keys() <= {*required, *others}, command
    if verb == "beta services identity create":
        assert flags["service"] in cloud.services, command
    elif verb == "services enable":
        cloud.services.add(name)
    elif verb == "storage buckets create":
        cloud.buckets[name.removeprefix("gs://")] = Bucket(flags["location"].upper(), policy={"bindings": []})
    elif verb == "iam service-accounts create":
        cloud.accounts[f"{name}@{flags['project']}.iam.gserviceaccount.com"] = Account(policy={"bindings": []})
    elif verb == "artifacts repositories create":
        cloud.repositories[name] = {"bindings": []}
    elif verb == "beta quotas preferences create":
        assert "@" in flags["email"], command
        _, _, region = flags["dimensions"].partition("=")
        cloud.quotas[flags["quota-id"]] = {**cloud.quotas[flags["quota-id"]], region: int(flags["preferred-value"])}
    elif verb.endswith("add-iam-policy-binding"):
        # Rule: a role can only be granted to existing accounts
        # (https://cloud.google.com/iam/docs/troubleshoot-policies)
        kind, _, email = flags["member"].partition(":")
        assert kind == "user" or email in cloud.accounts or PROJECT_NUMBER in email, command
        policies = {"projects": cloud.policy, "artifacts repositories": cloud.repositories.get(name)}
        policies["storage buckets"] = getattr(cloud.buckets.get(name.removeprefix("gs://")), "policy", None)
        policies["iam service-accounts"] = getattr(cloud.accounts.get(name), "policy", None)
        policy = policies[verb.removesuffix(" add-iam-policy-binding")]
        assert policy is not None, command
        policy.setdefault("bindings", []).append({"role": flags["role"], "members": [flags["member"]]})
