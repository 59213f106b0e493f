# syrtos with one framework: `docker build -t syrtos .`, then `docker run --rm -v "$PWD:/work" syrtos run -n 2 train.py` (docs/tutorials/docker.md).
FROM debian:bookworm-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv openssh-client \
 && rm -rf /var/lib/apt/lists/*

# tensorflow, jax or torch
ARG BACKEND=tensorflow
ENV KERAS_BACKEND=$BACKEND PATH=/opt/syrtos/bin:$PATH PYTHONUNBUFFERED=1
RUN python3 -m venv /opt/syrtos

WORKDIR /opt/source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[$BACKEND]"

# The script, its data and its run directories: a folder of the host.
WORKDIR /work
ENTRYPOINT ["syrtos"]
CMD ["--help"]
