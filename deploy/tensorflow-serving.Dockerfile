# TensorFlow Serving with one exported model inside. From the folder that has `served/`:
#     docker build -f deploy/tensorflow-serving.Dockerfile --build-arg MODEL=sst2 -t sst2:1 .
ARG BASE=tensorflow/serving:2.20.0
FROM ${BASE}
ARG MODEL=sst2
COPY served/${MODEL} /models/${MODEL}
# `export` wrote the two files beside the versions; ENTRYPOINT needs one place for any model.
COPY served/${MODEL}/models.config served/${MODEL}/batching_parameters.txt deploy/monitoring.config /config/
USER 10001:10001
EXPOSE 8500 8501
ENTRYPOINT ["tensorflow_model_server", "--port=8500", "--rest_api_port=8501", "--model_config_file=/config/models.config", "--model_config_file_poll_wait_seconds=5", "--allow_version_labels_for_unavailable_models", "--monitoring_config_file=/config/monitoring.config", "--enable_batching", "--batching_parameters_file=/config/batching_parameters.txt"]
