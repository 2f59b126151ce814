# A server for a class: JupyterLab with the course, for one student each (JupyterHub's DockerSpawner, or docker run).
#
#     course release ../handout && docker build -t course ../handout      students' copy: no solutions, no hidden tests
#     docker run --rm -p 8888:8888 course                                 prints the address with its token
#     docker build --build-arg JUPYTERHUB=5.3.0 -t course ../handout      below a hub: the hub's own version
#
# The digest is that of python:3.12.14-slim-bookworm (amd64 and arm64), as public Dockerfiles quoted it in September 2026. It was
# not pulled where this file was written, and the file was not built there. Look before you trust, and move it with the tag:
#     docker buildx imagetools inspect python:3.12-slim-bookworm
FROM python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

# git: nbgitpuller pulls with it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash student \
    && install -d -o student -g student /opt/venv /home/student/course

USER student
WORKDIR /home/student/course
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# PyTorch alone first: its layer stays when the course changes.
COPY --chown=student:student constraints.txt ./
RUN python -m venv /opt/venv \
    && pip install -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu

COPY --chown=student:student . ./
RUN pip install -c constraints.txt -e '.[jupyter]'

ARG JUPYTERHUB=
RUN if [ -n "$JUPYTERHUB" ]; then pip install "jupyterhub==$JUPYTERHUB" nbgitpuller; fi

EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--ServerApp.default_url=/lab/tree/lessons"]
