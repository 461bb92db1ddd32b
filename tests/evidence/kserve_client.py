"""KServe's own client against a running server: liveness, readiness, and predictions by V1 and V2.

It needs only `kserve`, which needs other versions than this project: install it in an environment of its own.

    python -m venv /tmp/kserve && /tmp/kserve/bin/pip install kserve
    tpu-pipelines serve digits --port 8080
    /tmp/kserve/bin/python tests/evidence/kserve_client.py http://127.0.0.1:8080 digits
"""

import argparse
import asyncio
import importlib.metadata

import numpy as np


async def check(url: str, name: str) -> None:
    """Ask the server named `name` at `url` for everything that the client can ask for; raises if an answer is wrong."""
    import httpx
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    v1 = InferenceRESTClient(RESTConfig(protocol="v1"))
    assert await v1.is_server_live(url)
    assert await v1.is_model_ready(url, name)
    answer = await v1.infer(url, {"instances": pixels.tolist()}, name)
    classes = [prediction["class"] for prediction in answer["predictions"]]

    v2 = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await v2.is_server_live(url)
    assert await v2.is_server_ready(url)
    assert await v2.is_model_ready(url, name)
    tensor = InferInput("image", list(pixels.shape), "UINT8")
    tensor.set_data_from_numpy(pixels, binary_data=False)
    response = await v2.infer(url, InferRequest(name, [tensor], request_id="42"), name)
    outputs = {output.name: output for output in response.outputs}
    assert (response.model_name, response.id) == (name, "42")
    assert outputs["class"].data == classes
    assert outputs["probabilities"].as_numpy().shape == (len(pixels), outputs["probabilities"].shape[1])
    await v2.infer(url, InferRequest(name, [tensor]), name)  # The client makes an id of its own, or sends none.

    tensor.set_data_from_numpy(pixels)
    refusal = None
    try:
        await v2.infer(url, InferRequest(name, [tensor]), name)
    except httpx.HTTPStatusError as error:
        refusal = error.response
    assert refusal is not None, "A binary tensor was accepted."
    assert (refusal.status_code, "binary_data=False" in refusal.text) == (400, True)


def main() -> None:
    """Print a line if every answer is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the server")
    parser.add_argument("name", help="name of its model, which takes images of 8×8 grey pixels")
    arguments = parser.parse_args()
    asyncio.run(check(arguments.url, arguments.name))
    print(f"kserve {importlib.metadata.version('kserve')}: V1 and V2 answer as its client expects")


if __name__ == "__main__":
    main()
