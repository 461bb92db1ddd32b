"""A model from Cloud Storage, as Vertex hands it to a container: the real client against a local server."""

from components import storage


def test_model_is_fetched_from_its_bucket(bucket, start_container, export_dir, digits):
    storage.upload(export_dir, "gs://bucket/models/7")
    with start_container(AIP_STORAGE_URI="gs://bucket/models/7/", AIP_HTTP_PORT="0") as running:
        answer = running.predict({"instances": digits[:3].tolist()})
        assert (answer.status, len(answer.body["predictions"])) == (200, 3)
